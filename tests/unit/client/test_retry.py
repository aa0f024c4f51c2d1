"""Which calls are sent again, and which are not."""

from collections.abc import Callable
from typing import Any

import pytest

from draftmill import Client, ProblemError, TransportError
from tests.redis_server import free_port
from tests.unit.client.conftest import FAST, KEY, SPEC, make_job
from tests.unit.client.scripted import Answer, Script, Scripted, job_answer, problem

Connect = Callable[[Script], tuple[Any, Scripted]]
JOB = make_job()
BUSY = problem("ledger-unavailable", 503)


def test_a_busy_service_is_asked_again_with_the_same_key(connect: Connect) -> None:
    client, server = connect([BUSY, Answer(hang_up=True), job_answer(JOB)])
    assert client.submit(SPEC) == JOB
    assert len({seen.headers["idempotency-key"] for seen in server.seen}) == 1
    assert len(server.seen) == 3


def test_patience_ends_with_the_services_own_problem(connect: Connect) -> None:
    client, server = connect([BUSY])
    with pytest.raises(ProblemError) as caught:
        client.get(JOB)
    assert caught.value.problem.slug == "ledger-unavailable"
    assert len(server.seen) == FAST.attempts


@pytest.mark.parametrize("call", ["cancel"])
def test_what_may_have_happened_is_not_done_twice(connect: Connect, call: str) -> None:
    client, server = connect([Answer(hang_up=True), job_answer(JOB)])
    with pytest.raises(TransportError):
        getattr(client, call)(JOB)
    assert len(server.seen) == 1


def test_a_retry_whose_answer_was_lost_is_sent_again_under_its_key(connect: Connect) -> None:
    client, server = connect([Answer(hang_up=True), job_answer(JOB)])
    assert client.retry(JOB) == JOB
    keys = [seen.headers["idempotency-key"] for seen in server.seen]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_problems_that_stay_are_not_asked_again(connect: Connect) -> None:
    client, server = connect([problem("preflight-timeout", 504)])
    with pytest.raises(ProblemError):
        client.get(JOB)
    assert len(server.seen) == 1


def test_nobody_listening_is_a_transport_error_that_names_the_url() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Client(url, KEY, retry=FAST) as client, pytest.raises(TransportError, match=url):
        client.get(JOB)


def test_retry_after_in_seconds_is_honoured() -> None:
    with (
        Scripted([Answer(503, b"", {"Retry-After": "0"}), job_answer(JOB)]) as server,
        Client(server.url, KEY) as client,
    ):
        assert client.get(JOB) == JOB
