"""C97: missing, private, gated and out of the token's scope are told apart, and the token is told to nobody."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftmill.problems import ProblemError
from draftmill_worker.pull import HubSettings, pull_repo, read_remote
from tests.conftest import ServedHub
from tests.fixtures.hub import Token
from tests.unit.pull import builders

SECRET = "hf_secretOfTheOperator0123"


@pytest.fixture
def settings(hub: ServedHub) -> HubSettings:
    return HubSettings(endpoint=hub.url, tries=2, backoff_seconds=0.01)


@pytest.fixture(autouse=True)
def repos(hub: ServedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    folder = builders.draft_model(tmp_path / "served")
    hub.add("org/public", folder)
    hub.add("org/private", folder, private=True)
    hub.add("org/gated", folder, gated=True)


CASES = [
    ("org/missing", None, "not-found-or-private"),
    ("org/private", None, "not-found-or-private"),
    ("org/gated", None, "gated-not-accepted"),
    ("org/missing", Token(), "not-found-or-private"),
    ("org/private", Token(), "not-found-or-private"),
    ("org/gated", Token(), "gated-not-accepted"),
    ("org/gated", Token(gated_scope=False, accepted={"org/gated"}), "token-scope"),
]


@pytest.mark.parametrize(("repo", "token", "slug"), CASES)
@pytest.mark.parametrize("way", ["pull", "preflight"])
def test_each_refusal_has_its_own_name(
    hub: ServedHub,
    settings: HubSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    repo: str,
    token: Token | None,
    slug: str,
    way: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
    else:
        hub.hub.tokens[SECRET] = token
    calls: dict[str, Callable[[], Any]] = {
        "pull": lambda: pull_repo(repo, "main", tmp_path / "sources", settings),
        "preflight": lambda: read_remote(repo, "main", settings),
    }
    with pytest.raises(ProblemError) as caught:
        calls[way]()
    assert caught.value.problem.slug == slug
    assert SECRET not in caught.value.problem.model_dump_json() + caplog.text


def test_a_private_repository_looks_like_a_missing_one(
    hub: ServedHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    answers = []
    for repo in ("org/private", "org/missing"):
        with pytest.raises(ProblemError) as caught:
            read_remote(repo, "main", settings)
        answers.append(caught.value.problem.model_dump_json().replace(repo, ""))
    assert answers[0] == answers[1]


def test_a_token_the_hub_does_not_know(settings: HubSettings) -> None:
    with pytest.raises(ProblemError, match="token-invalid") as caught:
        read_remote("org/public", "main", settings)
    assert SECRET not in str(caught.value)


def test_what_the_token_may_see_is_pulled_and_the_token_is_written_nowhere(
    hub: ServedHub, settings: HubSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.hub.tokens[SECRET] = Token(private={"org/private"}, accepted={"org/gated"})
    for repo in ("org/public", "org/private", "org/gated"):
        assert pull_repo(repo, "main", tmp_path / "sources", settings).cached is False
        read_remote(repo, "main", settings)
    for path in (tmp_path / "sources").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()
    assert SECRET not in caplog.text
    assert SECRET not in repr(settings)


def test_the_token_stays_with_the_hub(hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    """Weights are redirected to another host, which refuses whoever brings a token."""
    hub.hub.tokens[SECRET] = Token(accepted={"org/gated"})
    pull_repo("org/gated", "main", tmp_path / "sources", settings)
    storage = hub.log.find(kind="cdn")
    assert storage
    assert not any(request.authorized for request in storage)
    assert all(request.authorized for request in hub.log.find() if request.kind != "cdn")


def test_a_gated_repository_costs_no_weights(
    hub: ServedHub, settings: HubSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ProblemError, match="gated-not-accepted"):
        pull_repo("org/gated", "main", tmp_path / "sources", settings)
    assert hub.log.downloads() == []


def test_a_wrong_revision_of_a_repository_that_is_there(hub: ServedHub, settings: HubSettings) -> None:
    hub.hub.tokens[SECRET] = Token()
    for revision in ("nope", "0" * 40):
        with pytest.raises(ProblemError) as caught:
            read_remote("org/public", revision, settings)
        assert caught.value.problem.slug == "revision-not-found"
        assert json.loads(caught.value.problem.model_dump_json())["status"] == 422
