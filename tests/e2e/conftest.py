"""One embedded service for the end-to-end tests, and a Hub stand-in with random drafters."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.embedded import Up
from tests.fixtures.hub import Hub, Repo, Token, serving
from tests.fixtures.synthetic import Layout, build
from tests.integration.offices import office, redis_server  # noqa: F401

TOKEN = "hf_notARealToken"


@dataclass
class World:
    """Makes repositories on the stand-in, each with weights of its own."""

    hub: Hub
    url: str
    folder: Path
    made: int = 0

    def checkpoint(self, family: str = "eagle3") -> Path:
        self.made += 1
        return build(self.folder / f"{family}-{self.made}", family, Layout(seed=self.made))

    def repo(self, family: str = "eagle3", *, slow: bool = False) -> Repo:
        """A new repository; a slow one lets its weights through only after `hurry`."""
        folder = self.checkpoint(family)
        repo = self.hub.add(f"org/{folder.name}", folder)
        if slow:
            repo.faults.only = "*.safetensors"
            repo.faults.bytes_per_second = 2000
        return repo


def hurry(repo: Repo) -> None:
    """Downloads of a slow repository that begin from now on are quick."""
    repo.faults.bytes_per_second = None


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    hub = Hub()
    with serving(hub) as url:
        yield World(hub, url, tmp_path_factory.mktemp("repos"))


@pytest.fixture(scope="session")
def up(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A running `draftmill up` whose worker is warm. Tests share it."""
    world.hub.tokens[TOKEN] = Token()
    allowed = ("--allow-root", str(world.folder))
    with Up(tmp_path_factory.mktemp("data"), world.url, options=allowed, HF_TOKEN=TOKEN) as up:
        up.wait_until_warm()
        yield up
