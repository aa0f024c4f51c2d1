"""Redis, the broker's queue or the API itself go away; nothing is lost and nothing hangs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from draftmill.jobs import JobSpec
from draftmill.reports import LEDGER_AWAY, Event
from draftmill.states import Outcome
from draftmill_service.doorbell import Doorbell
from draftmill_service.keyring import Keyring, Scope
from draftmill_service.ledger import Ledger, WorkerLedger
from draftmill_service.reaper import Reaper
from draftmill_service.usecases import UseCases
from tests.integration.live import live_service
from tests.integration.test_api import SPEC, claim, problem, submit
from tests.integration.test_api_events import Listener
from tests.redis_server import RedisServer, free_port
from tests.support import eventually


@pytest.fixture
def queue(clean_redis: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(clean_redis, decode_responses=True) as client:
        yield client


def test_ledger_away_is_answered_in_time(durable_redis: RedisServer, tmp_path: Path) -> None:
    with live_service(durable_redis.url, tmp_path) as live, live.client() as api:
        job_id = submit(api)
        durable_redis.stop(signal.SIGKILL)
        calls = [
            ("GET", f"/v1/jobs/{job_id}"),
            ("GET", "/v1/jobs"),
            ("POST", "/v1/jobs"),
            ("POST", f"/v1/jobs/{job_id}/cancel"),
            ("GET", f"/v1/jobs/{job_id}/events?stream=true"),
            ("GET", "/readyz"),
            ("GET", "/metrics"),
        ]
        for method, path in calls:
            started = time.monotonic()
            response = api.request(method, path, json=SPEC if path == "/v1/jobs" and method == "POST" else None)
            assert time.monotonic() - started < 2.5
            problem(response, "ledger-unavailable")
        assert api.get("/healthz").status_code == 200
        durable_redis.start()
        # kill -9 took nothing: the append-only file is synced before each reply.
        assert eventually(lambda: api.get(f"/v1/jobs/{job_id}").status_code == 200)
        assert [job["id"] for job in api.get("/v1/jobs").json()["items"]] == [job_id]
        assert submit(api) > job_id


def test_frozen_ledger_does_not_hang_the_api(durable_redis: RedisServer, tmp_path: Path) -> None:
    with live_service(durable_redis.url, tmp_path) as live, live.client() as api:
        job_id = submit(api)
        durable_redis.send(signal.SIGSTOP)
        try:
            started = time.monotonic()
            problem(api.get(f"/v1/jobs/{job_id}"), "ledger-unavailable")
            assert time.monotonic() - started < 2.5
        finally:
            durable_redis.send(signal.SIGCONT)
        assert eventually(lambda: api.get(f"/v1/jobs/{job_id}").status_code == 200)


def test_service_starts_before_redis(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    with live_service(server.url, tmp_path) as live, live.client() as api:
        problem(api.get("/readyz"), "ledger-unavailable")
        server.start()
        try:
            assert eventually(lambda: api.get("/readyz").status_code == 200)
            submit(api)
        finally:
            server.stop()


def test_stream_and_worker_outlive_a_restart_of_redis(durable_redis: RedisServer, tmp_path: Path) -> None:
    worker = WorkerLedger.connect(durable_redis.url)
    with live_service(durable_redis.url, tmp_path) as live:
        with live.client() as api:
            job_id = submit(api)
        held = claim(worker, job_id)
        listener = Listener(live, f"/v1/jobs/{job_id}/events?stream=true")
        eventually(lambda: len(listener.seen) == 3)
        durable_redis.stop(signal.SIGKILL)
        # The stream says that it waits.
        eventually(lambda: listener.seen[-1].event == LEDGER_AWAY)
        durable_redis.start()
        worker.log(held, "info", "still here")
        assert worker.finish(held, Outcome.SUCCEEDED)
        eventually(listener.ended)
        events = [Event.model_validate_json(event.data) for event in listener.seen if event.data]
        assert events[3].data["message"] == "still here"
        assert events[-1].data["state"] == "succeeded"
        assert len({event.id for event in events}) == len(events)
    worker.close()


def messages(queue: redis.Redis, job_id: str) -> int:
    """How many messages of this job no worker has taken."""
    listed: Any = queue.lrange("draftmill.jobs", 0, -1)
    return sum(job_id in json.loads(message)["headers"]["argsrepr"] for message in listed)


def test_lost_queue_is_rung_again(queue: redis.Redis, clean_redis: str, tmp_path: Path) -> None:
    """C38: the broker's keys vanish, the jobs are in the ledger."""
    with live_service(clean_redis, tmp_path, reap_seconds=0.05, ring_seconds=0.2) as live, live.client() as api:
        jobs = [submit(api) for _ in range(3)]
        eventually(lambda: queue.llen("draftmill.jobs") == 3)
        gone = [key for key in queue.scan_iter() if key == "draftmill.jobs" or key.startswith("_kombu")]
        queue.delete(*gone)
        eventually(lambda: queue.llen("draftmill.jobs") == 3)
        assert [messages(queue, job_id) for job_id in jobs] == [1, 1, 1]


def test_dead_worker_is_noticed(queue: redis.Redis, clean_redis: str, tmp_path: Path, worker: WorkerLedger) -> None:
    with live_service(clean_redis, tmp_path, reap_seconds=0.05, max_attempts=2) as live, live.client() as api:
        job_id = submit(api)
        eventually(lambda: queue.llen("draftmill.jobs") == 1)
        for attempt in (1, 2):
            queue.delete("draftmill.jobs")
            assert worker.claim(job_id, "dies", 0.1) is not None
            if attempt == 1:
                eventually(lambda: messages(queue, job_id) == 1)
        job = eventually(lambda: (job := api.get(f"/v1/jobs/{job_id}").json())["done"] and job)
        assert (job["state"], job["reason"]) == ("failed", "worker_lost")
        assert [attempt["outcome"] for attempt in job["attempts"]] == ["lost", "lost"]
        assert 'draftmill_reaped_total{became="failed"} 1.0' in api.get("/metrics").text


async def test_one_reaper_leads(ledger: Ledger) -> None:
    assert await ledger.lead("a", 60)
    assert not await ledger.lead("b", 60)
    assert await ledger.lead("a", 60)
    await ledger.resign("b")
    assert not await ledger.lead("b", 60)
    await ledger.resign("a")
    assert await ledger.lead("b", 0.05)
    # A leader that died is replaced when its lock has run out.
    async with asyncio.timeout(5):
        while not await ledger.lead("a", 60):
            await asyncio.sleep(0.02)


def test_doorbell_without_a_broker_neither_blocks_nor_fails() -> None:
    doorbell = Doorbell(f"redis://127.0.0.1:{free_port()}/0")
    doorbell.start()
    started = time.monotonic()
    for _ in range(3):
        doorbell.ring("j" + "0" * 26)
    assert time.monotonic() - started < 0.5
    eventually(lambda: doorbell.failures == 3, timeout=20)
    doorbell.stop()


async def test_job_is_rung_although_its_message_was_lost(ledger: Ledger, queue: redis.Redis, clean_redis: str) -> None:
    doorbell = Doorbell(clean_redis)
    doorbell.start()
    cases = UseCases(ledger, doorbell, 1.0)
    # A string where the list should be: the message cannot be pushed.
    queue.set("draftmill.jobs", "in the way")
    job, created = await cases.submit(JobSpec.model_validate(SPEC), owner="x", idempotency_key=None)
    assert created
    queue.delete("draftmill.jobs")
    reaping = asyncio.create_task(Reaper(ledger, doorbell, every=0.05, max_attempts=3, ring_seconds=0.1).run())
    await asyncio.to_thread(eventually, lambda: messages(queue, job.id) == 1)
    # Its message is in the list now: there is nothing to ring for, however long ago it rang.
    assert await ledger.due_for_doorbell(0) == []
    reaping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reaping
    doorbell.stop()


@contextmanager
def process(redis_url: str, data_dir: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "DRAFTMILL_REDIS_URL": redis_url,
        "DRAFTMILL_DATA_DIR": str(data_dir),
        "DRAFTMILL_PORT": str(port),
    }
    command = [sys.executable, "-m", "draftmill_service.cli", "run"]
    with (data_dir / "log").open("ab") as log:
        started = subprocess.Popen(command, env=environment, stderr=log)
    try:
        yield started
    finally:
        started.kill()
        started.wait(10)


def test_a_batch_survives_the_api_that_was_making_it(durable_redis: RedisServer, tmp_path: Path) -> None:
    """kill -9 after the first of forty steps, or wherever it falls: the next one makes the rest, and nothing twice."""
    port, total = free_port(), 4000
    _, token = Keyring(tmp_path / "keys.json").create("tests", set(Scope))
    headers = {"Authorization": f"Bearer {token}"}
    matrix = {"sources": [{"repo": f"org/d{n}"} for n in range(1000)], "formats": ["fp8", "nvfp4"]}
    matrix["options"] = [{}, {"quantize": {"lm_head": True}}]

    def submit_batch(api: httpx.Client) -> httpx.Response | None:
        try:
            return api.post("/v1/batches", json=matrix, headers={"Idempotency-Key": "k"}, timeout=60)
        except httpx.TransportError:
            return None

    with (
        httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as api,
        redis.Redis.from_url(durable_redis.url, decode_responses=True) as ledger,
        ThreadPoolExecutor() as pool,
    ):

        def ready() -> bool:
            try:
                return api.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        def made() -> int:
            (batch,) = ledger.zrange("draftmill:ix:batches", 0, -1) or ("none",)
            return int(ledger.hget(f"draftmill:batch:{batch}", "made") or 0)

        with process(durable_redis.url, tmp_path, port) as service:
            eventually(ready, timeout=60)
            asking = pool.submit(submit_batch, api)
            eventually(lambda: made() > 0, timeout=60, interval=0.0)
            service.kill()
            service.wait(10)
            asking.result(60)
        with process(durable_redis.url, tmp_path, port):
            eventually(ready, timeout=60)
            eventually(lambda: made() == total, timeout=120)
            again = submit_batch(api)
    assert again is not None
    assert (again.status_code, again.json()["counts"]["queued"]) == (200, total)
    with redis.Redis.from_url(durable_redis.url) as ledger:
        assert ledger.zcard("draftmill:ix:all") == ledger.zcard("draftmill:ix:state:queued") == total
        assert ledger.zcard("draftmill:ix:batches") == 1


def test_api_killed_and_started_again(clean_redis: str, tmp_path: Path, worker: WorkerLedger) -> None:
    port = free_port()
    _, token = Keyring(tmp_path / "keys.json").create("tests", set(Scope))
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"}) as api:

        def ready() -> bool:
            try:
                return api.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        with process(clean_redis, tmp_path, port) as service:
            eventually(ready, timeout=30)
            job_id = submit(api)
            held = claim(worker, job_id)
            service.kill()
            service.wait(10)
        worker.log(held, "info", "the API is away")
        assert worker.finish(held, Outcome.SUCCEEDED)
        with process(clean_redis, tmp_path, port) as service:
            eventually(ready, timeout=30)
            assert api.get(f"/v1/jobs/{job_id}").json()["state"] == "succeeded"
            service.terminate()
            assert service.wait(10) == 0
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert token not in log
