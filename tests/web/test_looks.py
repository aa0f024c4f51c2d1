"""Every page in light, dark and phone width: pictures for people to look at, and what can be told without looking."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from draftmill import BatchSpec, Client, Format, Job, JobSpec, RepoSource
from tests.e2e.conftest import World
from tests.web.conftest import MEASURED, SCREENSHOTS, WINDOWS, Console

pytestmark = pytest.mark.vllm
MAX_BYTES = 150_000
CUT_OFF = """() => {
    const every = [...document.querySelectorAll("h1, h2, p, dd, dt, th, td, label, button, .state, .button")];
    const clipped = every.filter((element) =>
        element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0
        && !element.closest(".scroll, .log, .label, nav") && getComputedStyle(element).display !== "inline");
    return clipped.map((element) => element.outerHTML.slice(0, 120));
}"""


@pytest.fixture(scope="module")
def pages(client: Client, world: World, measured: list[Job], chosen: Job, captured: Job) -> dict[str, str]:
    sources = tuple(RepoSource(repo=repo) for repo in ("org/eagle3-drafter", "org/nobody"))
    batch = client.submit_batch(BatchSpec(sources=sources, formats=MEASURED))
    assert [*client.watch_batch(batch)][-1].done
    failed = client.wait(client.submit(JobSpec(source=RepoSource(repo="org/nobody"), format=Format.FP8)))
    one = measured[0].id
    boots = [client.acceptance(job).variant.receipt for job in measured[:2]]
    return {
        "jobs": "/jobs",
        "job": f"/jobs/{one}",
        "job-failed": f"/jobs/{failed.id}",
        "plan": f"/jobs/{one}/plan",
        "verify": f"/jobs/{one}/verify",
        "acceptance": f"/jobs/{one}/acceptance",
        "files": f"/jobs/{one}/files",
        "log": f"/jobs/{one}/log",
        "compare": "/compare?" + "&".join(f"job={job.id}" for job in measured),
        "compare-choose": "/compare",
        "batches": "/batches",
        "batch": f"/batches/{batch.id}",
        "receipts": "/receipts",
        "receipt": f"/receipts/{boots[0]}",
        "diff": f"/receipts/diff?boot={boots[0]}&boot={boots[1]}",
        "queues": "/queues",
        "capabilities": "/capabilities",
        "submit": f"/submit?like={one}",
        "submit-auto": f"/submit?like={chosen.id}",
        "submit-keep": f"/submit?like={captured.id}",
        "choice": f"/jobs/{chosen.id}/choice",
        "head": f"/jobs/{captured.id}/head",
        "job-keep": f"/jobs/{captured.id}",
    }


@pytest.mark.parametrize("window", WINDOWS)
def test_a_form_that_is_wrong_says_so_in_every_window(
    open_window: Callable[..., Page], console: Console, url: str, window: str
) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    console.expected = "status of 422"
    page = open_window(**WINDOWS[window])
    page.goto(f"{url}/submit")
    page.get_by_label("Repository").fill("org/drafter")
    page.locator("input[name=format][value=keep]").check()
    page.get_by_label("Rewrite lm_head in integers").check()
    page.locator("#vocab_ids").fill("ids.json")
    page.locator("#vocab").select_option("ids")
    page.locator("#head_damp").fill("much")
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_role("alert").wait_for()
    for name in ("head_damp", "vocab_ids"):
        assert page.locator(f"#{name}").get_attribute("aria-invalid") == "true"
        assert page.locator(f"#wrong-{name}").is_visible()
    page.screenshot(path=SCREENSHOTS / f"submit-wrong-{window}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.evaluate(CUT_OFF) == []


@pytest.mark.parametrize("window", WINDOWS)
def test_nothing_is_cut_off(open_window: Callable[..., Page], url: str, pages: dict[str, str], window: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page = open_window(**WINDOWS[window])
    faults = {}
    for name, path in pages.items():
        answer = page.goto(url + path)
        assert answer is not None
        assert answer.status == 200
        assert len(answer.body()) <= MAX_BYTES
        page.screenshot(path=SCREENSHOTS / f"{name}-{window}.png", full_page=True)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if wide > 0 or (cut := page.evaluate(CUT_OFF)):
            faults[name] = (wide, cut if wide <= 0 else [])
    assert faults == {}


def test_pages_say_all_without_scripts(open_window: Callable[..., Page], url: str, pages: dict[str, str]) -> None:
    page = open_window(java_script_enabled=False)
    said = {
        "jobs": "org/eagle3-drafter",
        "job": "job succeeded",
        "plan": "qkv_proj",
        "acceptance": "Position 3",
        "compare": "Pareto front",
        "diff": "differ",
        "queues": "Workers",
        "choice": "chosen",
        "head": "Same top token",
        "submit-auto": "Choose among these",
        "submit-keep": "Capture",
    }
    for name, words in said.items():
        page.goto(url + pages[name])
        assert words in page.locator("main").inner_text()


def test_the_table_is_reached_by_the_keyboard(open_window: Callable[..., Page], url: str, measured: list[Job]) -> None:
    page = open_window()
    page.goto(f"{url}/jobs?label=team%3Dx")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == f"job-{measured[-1].id}":
            break
    page.keyboard.press("Enter")
    page.wait_for_url(f"{url}/jobs/{measured[-1].id}")


def test_the_toggle_turns_the_colours(open_window: Callable[..., Page], url: str) -> None:
    page = open_window()
    page.goto(f"{url}/queues")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark colours").click()
    page.wait_for_url(f"{url}/queues")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.get_by_role("button", name="Light colours").click()
    page.wait_for_url(f"{url}/queues")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == light
