"""Following events over streams that break."""

from collections.abc import Callable
from typing import Any

import pytest

from draftmill import Event, EventKind, JobState, ProblemError, ProtocolError, TransportError
from tests.unit.client.conftest import make_job
from tests.unit.client.scripted import Answer, Script, Scripted, Seen, document, job_answer, problem

Connect = Callable[[Script], tuple[Any, Scripted]]
RUNNING, DONE = make_job(JobState.RUNNING), make_job(JobState.SUCCEEDED)


def event(number: int, state: str = "running") -> bytes:
    value = Event(
        id=f"{number}-0",
        job=DONE.id,
        time=DONE.timestamps[JobState.SUCCEEDED],
        kind=EventKind.STATE,
        data={"state": state},
    )
    return f"id: {value.id}\nevent: state\ndata: {value.model_dump_json()}\n\n".encode()


def stream(*events: bytes, cut: int | None = None) -> Answer:
    headers = {"Content-Type": "text/event-stream"}
    return Answer(200, b"".join(events), headers, cut=cut)


class Service:
    """Gives out streams in turn; says the job is done once they are all gone."""

    def __init__(self, *streams: Answer) -> None:
        self.streams = list(streams)

    def __call__(self, seen: Seen) -> Answer:
        if seen.path.endswith("/events"):
            return self.streams.pop(0)
        return job_answer(RUNNING if self.streams else DONE)


def resumed_from(server: Scripted) -> list[str | None]:
    return [seen.headers.get("last-event-id") for seen in server.seen if seen.path.endswith("/events")]


def test_a_stream_cut_inside_an_event_resumes_behind_the_last_whole_one(connect: Connect) -> None:
    whole = event(1) + event(2)
    client, server = connect(
        Service(stream(whole, event(3), cut=len(whole) + 20), stream(event(3), event(4, "succeeded")))
    )
    assert [found.id for found in client.watch(DONE)] == ["1-0", "2-0", "3-0", "4-0"]
    assert resumed_from(server) == [None, "2-0"]
    assert server.seen[0].headers["accept"] == "text/event-stream"


def test_a_stream_that_ends_before_the_job_is_followed_on(connect: Connect) -> None:
    # The service restarts: its streams end cleanly, then nobody answers for a moment.
    away = [problem("ledger-unavailable", 503), Answer(hang_up=True)]
    client, server = connect(Service(stream(event(1)), *away, stream(event(2, "succeeded"))))
    assert [found.id for found in client.watch(DONE)] == ["1-0", "2-0"]
    assert resumed_from(server) == [None, "1-0", "1-0", "1-0"]


def test_why_no_event_comes_is_told_once_each_time(connect: Connect) -> None:
    waits = b"event: ledger-unavailable\n\n"
    away = [problem("ledger-unavailable", 503), Answer(hang_up=True)]
    client, _ = connect(Service(stream(waits, waits, event(1)), *away, stream(waits, event(2, "succeeded"))))
    told: list[str] = []
    assert [found.id for found in client.watch(DONE, away=told.append)] == ["1-0", "2-0"]
    assert len(told) == 2
    assert told[0] == "The ledger cannot be reached"


def test_watching_starts_behind_a_given_event(connect: Connect) -> None:
    client, server = connect(Service(stream(event(8, "succeeded"))))
    assert [found.id for found in client.watch(DONE.id, after="7-0")] == ["8-0"]
    assert resumed_from(server) == ["7-0"]


def test_comments_are_not_events(connect: Connect) -> None:
    client, _ = connect(Service(stream(b": keep-alive\n\n", event(1, "succeeded"))))
    assert [found.id for found in client.watch(DONE)] == ["1-0"]


def test_wait_gives_the_job_at_its_end(connect: Connect) -> None:
    client, _ = connect(Service(stream(event(1, "succeeded"))))
    assert client.wait(DONE) == DONE


def test_an_unknown_job_is_a_problem_at_once(connect: Connect) -> None:
    client, server = connect([problem("not-found", 404)])
    with pytest.raises(ProblemError):
        list(client.watch(DONE))
    assert len(server.seen) == 1


def test_a_stream_that_never_comes_back_is_given_up(connect: Connect) -> None:
    client, _ = connect([Answer(hang_up=True)])
    with pytest.raises(TransportError, match="event stream"):
        list(client.watch(DONE))


def test_something_else_in_the_stream_is_a_protocol_error(connect: Connect) -> None:
    client, _ = connect([stream(b'id: 1-0\ndata: {"nonsense": true}\n\n')])
    with pytest.raises(ProtocolError):
        list(client.watch(DONE))


def test_an_answer_that_is_no_stream_is_given_up(connect: Connect) -> None:
    client, _ = connect([document({"items": [], "last_id": "0"})])
    with pytest.raises(TransportError, match="text/event-stream"):
        list(client.watch(DONE))
