"""The client's bounds against answers no honest Hub gives, over real connections."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest

from draftmill.problems import ProblemError
from draftmill_worker.pull.catalog import list_files, resolve_commit
from draftmill_worker.pull.client import MAX_REDIRECTS, HubClient
from draftmill_worker.pull.settings import HubSettings
from tests.unit.pull.wire import Answer, Reply, Seen, wire

TOKEN = "hf_verysecret0123456789"
COMMIT = "a" * 40


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def settings(url: str, **fields: Any) -> HubSettings:
    fast = {"tries": 3, "backoff_seconds": 0.01, "answer_seconds": 1.0, "connect_seconds": 1.0}
    return HubSettings(endpoint=url, **(fast | fields))


def resolved(reply: Reply, **fields: Any) -> tuple[str | ProblemError, list[Seen]]:
    with wire(reply) as (url, seen), HubClient(settings(url, **fields)) as client:
        try:
            return resolve_commit(client, "org/x", "main"), seen
        except ProblemError as error:
            return error, seen


def problem(reply: Reply, **fields: Any) -> tuple[str, list[Seen]]:
    outcome, seen = resolved(reply, **fields)
    assert isinstance(outcome, ProblemError)
    assert TOKEN not in outcome.problem.model_dump_json()
    return outcome.problem.slug, seen


def listed(url: str) -> str:
    """Slug of the problem with a listing."""
    with HubClient(settings(url)) as client, pytest.raises(ProblemError) as caught:
        list_files(client, "org/x", COMMIT)
    return caught.value.problem.slug


def always(status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> Reply:
    return lambda _: Answer(status, body, headers or {})


def in_turn(*answers: Answer) -> Reply:
    left = iter(answers)
    return lambda _: next(left)


def info(sha: Any = COMMIT) -> Answer:
    return Answer(body=json.dumps({"sha": sha}).encode())


def endless() -> Iterator[bytes]:
    while True:
        yield b"[" * 65536


def test_the_token_goes_to_the_endpoint() -> None:
    outcome, seen = resolved(lambda _: info())
    assert outcome == COMMIT
    assert seen[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert seen[0].headers["accept-encoding"] == "identity"
    assert seen[0].headers["user-agent"].startswith("draftmill/")


def test_the_token_does_not_follow_a_redirect_to_another_host() -> None:
    with wire(lambda _: info()) as (elsewhere, seen_elsewhere):
        outcome, _ = resolved(lambda _: Answer(302, headers={"Location": f"{elsewhere}/taken"}))
    assert outcome == COMMIT
    assert "authorization" not in seen_elsewhere[0].headers
    assert not any(TOKEN in value for value in seen_elsewhere[0].headers.values())


def test_a_renamed_repository_is_followed_with_the_token() -> None:
    def reply(seen: Seen) -> Answer:
        return (
            info() if seen.path.startswith("/api/models/new") else Answer(307, headers={"Location": "/api/models/new"})
        )

    outcome, seen = resolved(reply)
    assert outcome == COMMIT
    assert "authorization" in seen[1].headers


def test_pagination_does_not_lead_to_another_host() -> None:
    """The library's own paginator sends the token wherever the Link header points."""
    entry = {"type": "file", "path": "config.json", "oid": "0" * 40, "size": 1}
    with wire(lambda _: Answer(body=b"[]")) as (elsewhere, seen_elsewhere):
        page = Answer(body=json.dumps([entry]).encode(), headers={"Link": f'<{elsewhere}/next>; rel="next"'})
        with wire(lambda _: page) as (url, _):
            assert listed(url) == "listing-refused"
    assert seen_elsewhere == []


def test_redirects_are_bounded() -> None:
    slug, seen = problem(lambda _: Answer(302, headers={"Location": "/again"}))
    assert slug == "hub-unavailable"
    assert len(seen) == MAX_REDIRECTS + 1


def test_a_redirect_to_another_scheme_is_not_followed() -> None:
    for target in ("ftp://127.0.0.1/x", "file:///etc/passwd"):
        assert problem(always(302, headers={"Location": target}))[0] == "hub-unavailable"


def test_an_endless_answer_is_cut_off() -> None:
    slug, seen = problem(lambda _: Answer(body=endless()))
    assert slug == "listing-refused"
    assert seen[0].sent < 32 << 20


def test_an_endless_error_body_is_not_read() -> None:
    slug, seen = problem(lambda _: Answer(404, body=endless(), headers={"X-Error-Code": "RepoNotFound"}))
    assert slug == "not-found-or-private"
    assert seen[0].sent < 8 << 20


@pytest.mark.parametrize("sha", [None, 7, "main", "A" * 40, "a" * 39, "../../../../../../../../../../../../../xyz"])
def test_a_commit_is_forty_hex_digits(sha: Any) -> None:
    assert problem(lambda _: info(sha))[0] == "listing-refused"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"sha":"x","sha":"y"}', b"[" * 100_000, b"\xff\xfe"])
def test_an_answer_that_is_no_json_object_is_refused(body: bytes) -> None:
    assert problem(lambda _: Answer(body=body))[0] == "listing-refused"


def test_another_commit_than_asked_for_is_refused() -> None:
    with (
        wire(lambda _: info("b" * 40)) as (url, _),
        HubClient(settings(url)) as client,
        pytest.raises(ProblemError, match="listing-refused"),
    ):
        resolve_commit(client, "org/x", COMMIT)


def test_errors_that_may_pass_are_tried_again() -> None:
    for status in (408, 429, 500, 502, 503, 504):
        outcome, seen = resolved(in_turn(Answer(status), Answer(status), info()))
        assert outcome == COMMIT, status
        assert len(seen) == 3


def test_tries_are_bounded() -> None:
    slug, seen = problem(lambda _: Answer(503))
    assert (slug, len(seen)) == ("hub-unavailable", 3)
    slug, seen = problem(lambda _: Answer(429))
    assert (slug, len(seen)) == ("rate-limited", 3)


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "3600"},
        {"Retry-After": formatdate(time.time() + 3600, usegmt=True)},
        {"ratelimit": '"api";r=0;t=3600'},
    ],
)
def test_a_wait_beyond_the_bound_is_not_begun(headers: dict[str, str]) -> None:
    slug, seen = problem(lambda _: Answer(429, headers=headers), max_wait_seconds=60)
    assert (slug, len(seen)) == ("rate-limited", 1)


def test_retry_after_is_honoured() -> None:
    waits: list[float | None] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return False

    answers = in_turn(Answer(429, headers={"Retry-After": "7"}), Answer(503, headers={"Retry-After": "2"}), info())
    with wire(answers) as (url, _), HubClient(settings(url), Stop()) as client:
        assert resolve_commit(client, "org/x", "main") == COMMIT
    assert waits == [7, 2]


def test_a_retry_after_of_nonsense_is_an_ordinary_wait() -> None:
    answers = iter([Answer(503, headers={"Retry-After": "soon"}), info()])
    assert resolved(lambda _: next(answers))[0] == COMMIT


def test_a_hub_that_is_not_there() -> None:
    with wire(lambda _: info()) as (url, _):
        pass
    with HubClient(settings(url)) as client, pytest.raises(ProblemError, match="hub-unavailable"):
        resolve_commit(client, "org/x", "main")


def test_a_silent_hub_is_given_up() -> None:
    def silence() -> Iterator[bytes]:
        yield b"{"
        time.sleep(0.6)

    slug, seen = problem(lambda _: Answer(body=silence(), headers={"Content-Length": "100"}), answer_seconds=0.1)
    assert (slug, len(seen)) == ("hub-unavailable", 3)


def test_a_compressed_answer_is_not_taken() -> None:
    slug, _ = problem(lambda _: Answer(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"}))
    assert slug == "hub-unavailable"


def test_server_text_that_repeats_the_token_goes_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for status in (400, 401, 403, 404, 418, 500):
        headers = {"X-Error-Message": f"bad token {TOKEN}", "X-Error-Code": TOKEN}
        problem(always(status, f'{{"error": "{TOKEN}"}}'.encode(), headers))
    assert not any(TOKEN in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("value", ["hf_with\nnewline", "hf_with space", "hf_\u00e9"])
def test_a_token_that_cannot_be_sent_is_named_and_not_quoted(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HF_TOKEN", value)
    with pytest.raises(ProblemError, match="token-invalid") as caught:
        HubClient(settings("http://127.0.0.1:9"))
    assert value not in str(caught.value)


def test_an_empty_token_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", " ")
    _, seen = resolved(lambda _: info())
    assert "authorization" not in seen[0].headers


def test_a_token_saved_on_disk_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """HF_TOKEN alone: a worker must not act for whoever logged in on the machine."""
    saved = tmp_path / "token"
    saved.write_text(TOKEN)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(saved))
    _, seen = resolved(lambda _: info())
    assert "authorization" not in seen[0].headers


def test_offline_mode_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    slug, seen = problem(lambda _: info())
    assert (slug, seen) == ("hub-unavailable", [])


@pytest.mark.parametrize("endpoint", ["ftp://x", "https://user:pass@host", "nonsense", "", "https://"])
def test_an_endpoint_is_an_http_url_without_a_password(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        HubSettings(endpoint=endpoint)
