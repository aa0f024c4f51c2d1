"""Fixtures for every test."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# Read when huggingface_hub is imported: Xet storage is a protocol of its own that the stand-in does not speak.
os.environ["HF_HUB_DISABLE_XET"] = "1"

from tests.fixtures.hub import Hub, Log, Repo, serving

pytest_plugins = ["tests.skip_accounting"]


@dataclass(frozen=True)
class ServedHub:
    """A running Hub stand-in."""

    url: str
    hub: Hub

    @property
    def log(self) -> Log:
        return self.hub.log

    def add(self, repo_id: str, folder: Path, *, private: bool = False, gated: bool = False) -> Repo:
        return self.hub.add(repo_id, folder, private=private, gated=gated)


@pytest.fixture
def hub() -> Iterator[ServedHub]:
    standin = Hub()
    with serving(standin) as url:
        yield ServedHub(url, standin)


@pytest.fixture(scope="session")
def models() -> Path:
    """The shipped pair: `target` and one folder per drafter."""
    return Path(__file__).parent / "fixtures" / "models"
