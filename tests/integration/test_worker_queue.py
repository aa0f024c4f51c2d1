"""Long jobs, waiting jobs and stages with children of their own, in the worker's processes on a real Redis."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from draftmill.states import JobState, Stage
from draftmill_service.ledger.keys import JOBS_QUEUE
from tests.integration.worker_process import LEASE_SECONDS, Office, Worker
from tests.redis_server import RedisServer
from tests.support import eventually

SMALL = "tests.integration.worker_stages.small"


@pytest.fixture
def office(durable_redis: RedisServer) -> Iterator[Office]:
    with Office(durable_redis.url) as office:
        yield office


@contextmanager
def working(folder: Path, server: RedisServer) -> Iterator[Worker]:
    folder.mkdir()
    worker = Worker(folder, server.url, SMALL)
    worker.start()
    try:
        yield worker
    finally:
        worker.close()


def test_c6_c99_a_job_longer_than_its_lease_runs_once(
    office: Office, durable_redis: RedisServer, tmp_path: Path
) -> None:
    """Three stages of a second and a half each, one of them in a process of the stage's own, and doorbells between."""
    with working(tmp_path / "one", durable_redis), working(tmp_path / "two", durable_redis):
        job_id = office.submit(pull="pause", quantize="children", verify="pause")
        for stage in (Stage.PULL, Stage.QUANTIZE, Stage.VERIFY):
            office.reach(job_id, stage)
            office.ring(job_id)
        job = office.done(job_id)
    assert job.state is JobState.SUCCEEDED, job.problem
    (attempt,) = job.attempts
    assert attempt.ended_at is not None
    assert (attempt.ended_at - attempt.started_at).total_seconds() > LEASE_SECONDS


def test_c62_a_waiting_job_is_not_kept_behind_a_long_one(
    office: Office, durable_redis: RedisServer, tmp_path: Path
) -> None:
    with working(tmp_path / "one", durable_redis), redis.Redis.from_url(durable_redis.url) as broker:
        long = office.submit(pull="hang")
        office.reach(long, Stage.PULL)
        waiting = [office.submit(), office.submit()]
        eventually(lambda: broker.llen(JOBS_QUEUE) >= len(waiting))
        with working(tmp_path / "two", durable_redis):
            assert {office.done(job_id).state for job_id in waiting} == {JobState.SUCCEEDED}
        assert office.job(long).state is JobState.RUNNING
        # Celery keeps here what a worker took and did not start. Another doorbell would hide the delay, not the fault.
        assert broker.hlen("unacked") == 0
        office.cancel(long)
        assert office.done(long).state is JobState.CANCELED
