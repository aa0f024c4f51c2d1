"""Every page in light, dark and phone width: pictures for people to look at, and what can be told without looking."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from draftmill import BatchSpec, Client, Format, Job, JobSpec, RepoSource
from tests.e2e.conftest import World
from tests.web.conftest import MEASURED, SCREENSHOTS, WINDOWS

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
def pages(client: Client, world: World, measured: list[Job], mill: Callable[..., Job]) -> dict[str, str]:
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
    }


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
