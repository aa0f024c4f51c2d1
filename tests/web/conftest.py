"""A running service with real jobs, and a Chromium that is signed in to its dashboard."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from draftmill import (
    Auto,
    Benchmark,
    CaptureOptions,
    Client,
    DraftVocabOptions,
    Format,
    Gate,
    HeadOptions,
    Job,
    JobSpec,
    JobState,
    PromptSet,
    RepoSource,
)
from tests.e2e.conftest import World
from tests.e2e.embedded import Up
from tests.fixtures.heads import target
from tests.fixtures.hub import Hub, serving

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / ".draftmill" / "screenshots"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
# A page that other work on the machine slows down is not a broken one.
PATIENCE = 120_000
WINDOWS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 800}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 800}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}
MEASURED = (Format.FP8, Format.FP8_PC_PT, Format.NVFP4)
BENCHMARK = Benchmark(
    target=RepoSource(repo="org/target"),
    num_speculative_tokens=3,
    prompts=PromptSet(builtin="draftmill-1", limit=6, max_tokens=32),
    no_speculation=False,
    gate=Gate(max_al_drop=0.9),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.web)
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    hub = Hub()
    with serving(hub) as url:
        yield World(hub, url, tmp_path_factory.mktemp("repos"))


@pytest.fixture(scope="session")
def up(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("data"), world.url) as up:
        up.wait_until_warm()
        yield up


@pytest.fixture(scope="session")
def url(up: Up) -> str:
    return str(up.announced["url"]) + "/ui"


@pytest.fixture(scope="session")
def client(up: Up) -> Iterator[Client]:
    with up.client() as client:
        yield client


@pytest.fixture(scope="session")
def mill(client: Client) -> Callable[..., Job]:
    """Submits a job for a repository, and waits for its end."""

    def run(repo: str, format: Format | str = Format.FP8_PC_PT, **fields: object) -> Job:
        spec = {"source": RepoSource(repo=repo), "format": format, **fields}
        return client.wait(client.submit(JobSpec.model_validate(spec)))

    return run


@pytest.fixture(scope="session")
def measured(world: World, models: Path, mill: Callable[..., Job]) -> list[Job]:
    """One drafter in several formats, each measured in vLLM against one control."""
    world.hub.add("org/target", models / "target")
    world.hub.add("org/eagle3-drafter", models / "eagle3")
    jobs = [mill("org/eagle3-drafter", format, benchmark=BENCHMARK, labels={"team": "x"}) for format in MEASURED]
    assert [job.state for job in jobs] == [JobState.SUCCEEDED] * len(jobs), [job.problem for job in jobs]
    return jobs


@pytest.fixture(scope="session")
def chosen(world: World, mill: Callable[..., Job]) -> Job:
    """By a budget of size alone, so that nothing was measured in an engine."""
    job = mill(world.repo().id, "auto", auto=Auto(max_size=0.6))
    assert job.state is JobState.SUCCEEDED, job.problem
    return job


@pytest.fixture(scope="session")
def captured(world: World, mill: Callable[..., Job]) -> Job:
    """A head by GPTQ and a draft vocabulary, judged by hidden states that vLLM gave."""
    folder = target.build(world.folder / "captured", exact=True, tied=True)
    target.write_tokenizer(folder)
    job = mill(
        world.hub.add("org/captured", folder).id,
        "keep",
        head=HeadOptions(bits=4, method="gptq"),
        draft_vocab=DraftVocabOptions(own_outputs=True, size=600),
        capture=CaptureOptions(texts=PromptSet(max_tokens=32)),
    )
    assert job.state is JobState.SUCCEEDED, job.problem
    return job


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Console:
    """What the browser complained about, and what a test expects it to."""

    errors: list[str] = field(default_factory=list)
    expected: str | None = None

    def heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(f"{message.text} ({message.location.get('url')})")

    def unexpected(self) -> list[str]:
        return [error for error in self.errors if self.expected is None or not re.search(self.expected, error)]


@pytest.fixture(scope="session")
def cookies(chromium: Browser, up: Up, url: str) -> object:
    """Of a session that the printed link began."""
    context = chromium.new_context()
    page = context.new_page()
    page.goto(up.announced["dashboard"])
    assert page.url == f"{url}/jobs"
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def console() -> Iterator[Console]:
    console = Console()
    yield console
    assert console.unexpected() == []


@pytest.fixture
def open_window(chromium: Browser, cookies: object, console: Console) -> Iterator[Callable[..., Page]]:
    """A page of a browser that is signed in; options are those of a Playwright context."""
    contexts: list[BrowserContext] = []

    def run(**options: object) -> Page:
        given = WINDOWS["light"] | {"storage_state": cookies} | options
        context = chromium.new_context(**given)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", console.heard)
        page.on("pageerror", lambda error: console.errors.append(str(error)))
        return page

    yield run
    for context in contexts:
        context.close()


@pytest.fixture
def page(open_window: Callable[..., Page]) -> Page:
    return open_window()
