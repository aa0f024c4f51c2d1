"""Events as pages and as a stream of server-sent events."""

import threading
import time
from typing import Any

import httpx
import pytest
import redis
from httpx_sse import ServerSentEvent, connect_sse

from draftmill.jobs import Progress
from draftmill.reports import Event, EventPage
from draftmill.states import Outcome, Stage
from draftmill_service.ledger import WorkerLedger
from tests.integration.live import Live, live_service
from tests.integration.test_api import claim, problem, submit
from tests.support import eventually


class Listener:
    """Reads a stream in a thread, to its end or the connection's."""

    def __init__(self, live: Live, path: str, headers: dict[str, str] | None = None) -> None:
        self.seen: list[ServerSentEvent] = []
        self.cut_off = False
        self._live, self._path, self._headers = live, path, headers or {}
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        try:
            with (
                self._live.client() as client,
                connect_sse(client, "GET", self._path, headers=self._headers) as source,
            ):
                for event in source.iter_sse():
                    self.seen.append(event)
        except httpx.RemoteProtocolError:
            self.cut_off = True

    def ended(self) -> bool:
        self._thread.join(0.01)
        return not self._thread.is_alive()


def states(events: list[ServerSentEvent]) -> list[str]:
    return [Event.model_validate_json(event.data).data["state"] for event in events if event.event == "state"]


def test_page(api: httpx.Client, worker: WorkerLedger) -> None:
    job_id = submit(api)
    worker.finish(claim(worker, job_id), Outcome.SUCCEEDED)
    path = f"/v1/jobs/{job_id}/events"
    page = EventPage.model_validate_json(api.get(path).content)
    assert [event.kind for event in page.items] == ["state", "state", "attempt", "attempt", "state"]
    assert page.last_id == page.items[-1].id
    first = EventPage.model_validate_json(api.get(path, params={"limit": 2}).content)
    assert first.items == page.items[:2]
    rest = EventPage.model_validate_json(api.get(path, params={"after": first.last_id}).content)
    assert rest.items == page.items[2:]
    end = EventPage.model_validate_json(api.get(path, params={"after": page.last_id}).content)
    assert (end.items, end.last_id) == ((), page.last_id)


@pytest.mark.parametrize("query", ["after=x", f"after={'9' * 30}", "limit=0", "limit=many", "since=0"])
def test_page_checks_its_query(api: httpx.Client, query: str) -> None:
    problem(api.get(f"/v1/jobs/{submit(api)}/events?{query}"), "invalid-request")


def test_stream_follows_to_the_end(live: Live, api: httpx.Client, worker: WorkerLedger) -> None:
    job_id = submit(api)
    listener = Listener(live, f"/v1/jobs/{job_id}/events", {"Accept": "text/event-stream"})
    eventually(lambda: listener.seen)
    held = claim(worker, job_id)
    worker.progress(held, Stage.PULL, Progress(done=1, total=2, unit="bytes"))
    eventually(lambda: len(listener.seen) == 4)
    worker.finish(held, Outcome.SUCCEEDED)
    eventually(listener.ended)
    assert states(listener.seen) == ["queued", "running", "succeeded"]
    assert [event.id for event in listener.seen] == sorted(event.id for event in listener.seen)
    assert Event.model_validate_json(listener.seen[-1].data).id == listener.seen[-1].id


def test_stream_resumes_behind_the_last_event(live: Live, api: httpx.Client, worker: WorkerLedger) -> None:
    job_id = submit(api)
    worker.finish(claim(worker, job_id), Outcome.SUCCEEDED)
    events = EventPage.model_validate_json(api.get(f"/v1/jobs/{job_id}/events").content).items
    for index in range(len(events)):
        headers = {"Last-Event-ID": events[index].id}
        listener = Listener(live, f"/v1/jobs/{job_id}/events?stream=true", headers)
        eventually(listener.ended)
        assert [event.id for event in listener.seen] == [event.id for event in events[index + 1 :]]


def test_stream_of_a_retried_job_goes_on(live: Live, api: httpx.Client, worker: WorkerLedger) -> None:
    job_id = submit(api)
    api.post(f"/v1/jobs/{job_id}/cancel")
    api.post(f"/v1/jobs/{job_id}/retry")
    listener = Listener(live, f"/v1/jobs/{job_id}/events?stream=true")
    eventually(lambda: len(listener.seen) == 3)
    assert not listener.ended()
    worker.finish(claim(worker, job_id), Outcome.SUCCEEDED)
    eventually(listener.ended)
    assert states(listener.seen) == ["queued", "canceled", "queued", "running", "succeeded"]


def test_any_text_survives_the_stream(live: Live, api: httpx.Client, worker: WorkerLedger) -> None:
    """Line ends of every kind: a raw one would break the event in two."""
    text = "a\nb\r\nc\rd\x0be\x0cf\x85g\u2028h\u2029i\x00j \U0001f600 data: x\n\nid: 1-1\n"
    job_id = submit(api)
    held = claim(worker, job_id)
    worker.log(held, "info", text)
    worker.finish(held, Outcome.SUCCEEDED)
    listener = Listener(live, f"/v1/jobs/{job_id}/events?stream=true")
    eventually(listener.ended)
    (logged,) = [event for event in listener.seen if event.event == "log"]
    assert Event.model_validate_json(logged.data).data["message"] == text


def test_stream_keeps_the_connection_alive(clean_redis: str, tmp_path: Any) -> None:
    with live_service(clean_redis, tmp_path, keepalive_seconds=0.05) as live, live.client() as client:
        path = f"/v1/jobs/{submit(client)}/events?stream=true"
        with client.stream("GET", path) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            comments = (line for line in response.iter_lines() if line.startswith(":"))
            assert [next(comments) for _ in range(3)]


def test_disconnected_listeners_leave_nothing_behind(live: Live, api: httpx.Client, clean_redis: str) -> None:
    path = f"/v1/jobs/{submit(api)}/events?stream=true"
    with redis.Redis.from_url(clean_redis) as observer:

        def blocked() -> int:
            return int(observer.info("clients")["blocked_clients"])

        for _ in range(5):
            with live.client() as client, client.stream("GET", path) as response:
                lines = response.iter_lines()
                next(lines)
                eventually(lambda: blocked() == 1)
            eventually(lambda: blocked() == 0, timeout=3)


def test_stream_shuts_down_with_the_service(clean_redis: str, tmp_path: Any) -> None:
    with live_service(clean_redis, tmp_path) as live:
        with live.client() as client:
            path = f"/v1/jobs/{submit(client)}/events?stream=true"
        listener = Listener(live, path)
        eventually(lambda: listener.seen)
        started = time.monotonic()
    assert time.monotonic() - started < 5
    # The stream was ended, not cut off.
    eventually(listener.ended)
    assert not listener.cut_off
