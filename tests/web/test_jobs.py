"""A job in the browser, from the form to its end, and what is followed on the way."""

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from draftmill import Auto, BatchSpec, Client, DraftVocabOptions, Format, Job, JobSpec, PathSource, RepoSource
from tests.e2e.conftest import World, hurry
from tests.e2e.embedded import Up
from tests.support import eventually
from tests.web.conftest import PATIENCE, Console

expect.set_options(timeout=PATIENCE)
JOB = re.compile(r"/ui/jobs/(j[0-9a-z]{26})$")


def submit(client: Client, repo: str) -> Job:
    return client.submit(JobSpec(source=RepoSource(repo=repo), format=Format.FP8_PC_PT))


def test_from_the_form_over_the_plan_to_the_end(page: Page, url: str, world: World, client: Client) -> None:
    repo = world.repo("dspark")
    before = {job.id for job in client.list()}
    page.goto(f"{url}/jobs")
    page.get_by_role("link", name="New job").click()
    page.get_by_label("Repository").fill(repo.id)
    page.get_by_role("radio", name="fp8_pc_pt").check()
    page.get_by_text("Options").click()
    page.get_by_label("Tensors to keep").fill("*o_proj*")
    page.get_by_label("Labels").fill("team=x")
    page.get_by_role("button", name="Show the plan").click()
    row = page.get_by_role("row").filter(has_text="layers.0.self_attn.o_proj.weight")
    expect(row).to_contain_text("kept")
    expect(page.get_by_role("row").filter(has_text="layers.0.mlp.down_proj.weight")).to_contain_text("quantized")
    assert {job.id for job in client.list()} == before
    page.get_by_role("button", name="Change it").click()
    expect(page.get_by_label("Tensors to keep")).to_have_value("*o_proj*")
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_role("button", name="Submit this job").click()
    expect(page).to_have_url(JOB)
    page.evaluate("window.sameDocument = true")
    expect(page.locator("#status[data-state=succeeded]")).to_be_visible()
    assert page.evaluate("window.sameDocument")
    for stage in ("pull", "plan", "quantize", "assemble", "verify", "seal"):
        stages = page.get_by_role("region", name="Stages")
        expect(
            stages.get_by_role("row").filter(has=page.get_by_role("rowheader", name=stage, exact=True))
        ).to_contain_text("succeeded")
    expect(page.locator("#log")).to_contain_text("job succeeded")
    expect(page.locator("#log-status")).to_have_text("ended")
    spec = client.get(page.url.rsplit("/", 1)[1]).spec
    assert spec.quantize.exclude == ("*o_proj*",)
    assert spec.labels == {"team": "x"}


def test_a_refusal_is_shown_before_there_is_a_job(
    page: Page, url: str, world: World, client: Client, console: Console
) -> None:
    # The page that says so is not a 200.
    console.expected = "status of 422"
    before = {job.id for job in client.list()}
    page.goto(f"{url}/submit")
    page.get_by_label("Repository").fill("org/nobody")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("alert")).to_contain_text("not-found-or-private")
    expect(page.get_by_role("button", name="Submit this job")).to_have_count(0)
    assert {job.id for job in client.list()} == before


def test_groups_of_the_form_show_with_their_format_and_without_scripts(
    open_window: Callable[..., Page], url: str, world: World, client: Client
) -> None:
    repo = world.repo()
    page = open_window(java_script_enabled=False)
    page.goto(f"{url}/submit")
    budget, head = page.get_by_role("group", name="Budget"), page.get_by_role("group", name="Head")
    tensors = page.get_by_label("Tensors to keep")
    page.get_by_text("Options").click()
    expect(budget).to_be_hidden()
    expect(head).to_be_hidden()
    expect(tensors).to_be_visible()
    page.locator("input[name=format][value=keep]").check()
    expect(budget).to_be_hidden()
    expect(head).to_be_visible()
    expect(tensors).to_be_hidden()
    page.locator("input[name=format][value=auto]").check()
    expect(budget).to_be_visible()
    expect(head).to_be_hidden()
    page.get_by_label("Repository").fill(repo.id)
    page.get_by_label("Size at most").fill("0.6")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.locator("main")).to_contain_text("within 60% of the source's weights")
    expect(page.get_by_role("row").filter(has_text="mlp.down_proj.weight")).to_contain_text("quantized")
    page.get_by_role("button", name="Submit this job").click()
    expect(page).to_have_url(JOB)
    job = client.wait(page.url.rsplit("/", 1)[1])
    assert job.spec.auto == Auto(max_size=0.6)
    page.get_by_role("link", name="Choice").click()
    found = client.choice(job)
    rows = page.get_by_role("region", name="Candidates").get_by_role("row")
    expect(rows).to_have_count(1 + len(found.candidates))
    chosen = rows.nth(1 + found.chosen)
    expect(chosen).to_contain_text("chosen")
    expect(chosen).to_contain_text(f"{found.choice.weight_error:.4f}")
    expect(page.get_by_role("region", name="Modules").get_by_role("row")).to_have_count(1 + len(found.sensitivities))


def test_a_draft_vocabulary_by_the_form(page: Page, url: str, world: World, client: Client) -> None:
    repo = world.repo()
    page.goto(f"{url}/submit")
    page.get_by_label("Repository").fill(repo.id)
    page.locator("input[name=format][value=keep]").check()
    page.locator("#vocab").select_option("ids")
    page.locator("#vocab_ids").fill("/nowhere/ids.json")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.locator("main")).to_contain_text("ids of /nowhere/ids.json")
    page.get_by_role("button", name="Submit this job").click()
    expect(page).to_have_url(JOB)
    # The operator allows no path here; the job that says so is the one that was asked for.
    expect(page.locator("#status[data-state=failed]")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("path-not-allowed")
    page.get_by_role("link", name="Head", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("not-ready")
    spec = client.get(page.url.rsplit("/", 2)[1]).spec
    assert spec.draft_vocab == DraftVocabOptions(ids=PathSource(path="/nowhere/ids.json"))


def test_the_table_follows_states_without_a_reload(page: Page, url: str, world: World, client: Client) -> None:
    slow = world.repo(slow=True)
    page.goto(f"{url}/jobs")
    page.evaluate("window.sameDocument = true")
    job = submit(client, slow.id)
    row = page.get_by_role("row").filter(has_text=job.id)
    expect(row).to_contain_text("running")
    hurry(slow)
    expect(row).to_contain_text("succeeded")
    assert page.evaluate("window.sameDocument")
    page.get_by_label("State").select_option("failed")
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(re.compile("state=failed"))
    expect(row).to_have_count(0)


def test_cancel_and_retry(page: Page, url: str, world: World, client: Client) -> None:
    slow = world.repo(slow=True)
    job = submit(client, slow.id)
    page.goto(f"{url}/jobs/{job.id}")
    expect(page.locator("#status[data-state=running]")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#status[data-state=canceled]")).to_be_visible()
    expect(page.locator("#log")).to_contain_text("job canceled")
    hurry(slow)
    page.reload()
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("#status[data-state=succeeded]")).to_be_visible()
    stages = page.get_by_role("region", name="Stages")
    expect(stages.get_by_role("row").filter(has_text="attempt 1")).to_contain_text("canceled")
    expect(stages.get_by_role("row").filter(has_text="attempt 2")).to_contain_text("succeeded")
    expect(stages.get_by_role("row").filter(has_text="queued")).to_have_count(2)


def test_a_log_is_followed_across_a_restart_of_the_service(
    page: Page, url: str, world: World, client: Client, up: Up, console: Console
) -> None:
    # While the service is away the browser says that it cannot reach it.
    console.expected = "net::ERR_|status of 50|htmx:"
    slow = world.repo(slow=True)
    job = submit(client, slow.id)
    page.goto(f"{url}/jobs/{job.id}")
    page.evaluate("window.sameDocument = true")
    log, status = page.locator("#log"), page.locator("#log-status")
    expect(log).to_contain_text("running")
    expect(status).to_have_text("live")
    before = up.child("api")
    up.kill("api")
    eventually(lambda: not before.is_running(), timeout=30)
    hurry(slow)
    expect(status).to_have_text("ended")
    assert page.evaluate("window.sameDocument")
    expect(page.locator("#status[data-state=succeeded]")).to_be_visible()
    # Every line of the job is there, once, in order.
    shown = [
        identity.removeprefix("line-")
        for identity in page.locator("#log li").evaluate_all("all => all.map(li => li.id)")
    ]
    events = [event.id for event in client.events(job).items if event.kind != "progress"]
    assert shown == events


def test_the_plan_is_searched_in_place(page: Page, url: str, world: World, mill: Callable[..., Job]) -> None:
    job = mill(world.repo().id)
    page.goto(f"{url}/jobs/{job.id}/plan")
    table = page.get_by_role("region", name="Tensors")
    expect(table.get_by_role("row").filter(has_text="norm.weight").first).to_be_visible()
    page.get_by_role("searchbox").fill("quantized q_proj")
    expect(table.get_by_role("row").filter(has_text="norm.weight")).to_have_count(0)
    expect(table.get_by_role("row")).to_have_count(2)
    expect(table).to_contain_text("qkv_proj")
    page.goto(f"{url}/jobs/{job.id}/verify")
    expect(page.get_by_role("region", name="Checks").get_by_role("row").filter(has_text="pass").first).to_be_visible()
    page.goto(f"{url}/jobs/{job.id}/files")
    with page.expect_download() as saved:
        page.get_by_role("link", name="config.json", exact=True).click()
    assert b"quantization_config" in saved.value.path().read_bytes()


def test_queues_and_workers(page: Page, url: str, world: World, client: Client) -> None:
    slow = world.repo(slow=True)
    jobs = [submit(client, slow.id), submit(client, world.repo().id)]
    page.goto(f"{url}/queues")
    workers = page.get_by_role("region", name="Workers")
    expect(workers.get_by_role("row").filter(has_text="draftmill.preflight")).to_have_count(1)
    expect(workers.get_by_role("row").filter(has_text=slow.id)).to_contain_text("pull")
    expect(page.get_by_role("region", name="Waiting longest")).to_contain_text(jobs[1].spec.source.repo)  # type: ignore[union-attr]
    hurry(slow)
    expect(page.get_by_role("region", name="Waiting longest")).to_contain_text("Nothing waits.")
    for job in jobs:
        client.wait(job)


def test_a_batch_fills_its_matrix(page: Page, url: str, world: World, client: Client) -> None:
    repos = [world.repo(), world.repo(slow=True)]
    formats = (Format.FP8, Format.NVFP4)
    sources = (*(RepoSource(repo=repo.id) for repo in repos), RepoSource(repo="org/nobody"))
    batch = client.submit_batch(BatchSpec(sources=sources, formats=formats))
    page.goto(f"{url}/batches")
    page.get_by_role("link", name=batch.id).click()
    page.evaluate("window.sameDocument = true")
    matrix = page.get_by_role("region", name="Matrix")
    expect(matrix.locator("a.cell")).to_have_count(6)
    hurry(repos[1])
    expect(page.locator("#batch[data-state=failed]")).to_be_visible()
    assert page.evaluate("window.sameDocument")
    classes = matrix.locator("a.cell").evaluate_all("all => all.map(cell => cell.className)")
    assert classes == ["cell succeeded"] * 4 + ["cell failed"] * 2
    expect(page.locator("#retry-batch")).to_be_visible()
    matrix.locator("a.cell").first.click()
    expect(page.get_by_role("link", name=batch.id)).to_be_visible()
