"""What a worker outlives: its own death, SIGTERM, a Redis that is killed; and deadlines."""

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from draftmill.formats import Format
from draftmill.jobs import Job, JobSpec, RepoSource
from draftmill.states import JobState, Reason, Stage
from draftmill_worker import process
from tests.integration.worker_process import Office, Worker
from tests.redis_server import RedisServer
from tests.support import eventually

SMALL = "tests.integration.worker_stages.small"


@pytest.fixture
def office(durable_redis: RedisServer) -> Iterator[Office]:
    with Office(durable_redis.url) as office:
        yield office


@pytest.fixture
def worker(office: Office, durable_redis: RedisServer, tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path, durable_redis.url, SMALL, DRAFTMILL_DRAIN_SECONDS="1", DRAFTMILL_STAGE_SECONDS="2")
    worker.start()
    yield worker
    worker.close()


def _outcomes(job: Job) -> list[str | None]:
    return [attempt.outcome for attempt in job.attempts]


def _all_below(worker: Worker) -> list[psutil.Process]:
    return [worker.launcher, *worker.launcher.children(recursive=True)]


@pytest.mark.parametrize("how", ["all at once", "the launcher"])
def test_a_worker_killed_and_started_again(office: Office, worker: Worker, how: str) -> None:
    job_id = office.submit(pull="hang-once")
    office.reach(job_id, Stage.PULL)
    below = _all_below(worker)
    if how == "all at once":
        worker.kill()
    else:
        os.kill(worker.launcher.pid, signal.SIGKILL)
        eventually(lambda: not [one for one in below if process.alive(one)], timeout=3.0)
    worker.start()
    job = office.done(job_id)
    assert job.state is JobState.SUCCEEDED
    assert _outcomes(job) == ["lost", "succeeded"]
    eventually(lambda: not list((worker.data / "jobs").glob("*/*/scratch")))


def test_sigterm_lets_a_short_job_end(office: Office, worker: Worker) -> None:
    office.done(office.submit())
    job_id = office.submit()
    office.reach(job_id, Stage.PULL)
    assert worker.stop() == 0
    assert office.job(job_id).state is JobState.SUCCEEDED


def test_sigterm_hands_a_long_job_back(office: Office, worker: Worker) -> None:
    job_id = office.submit(pull="hang-once")
    office.reach(job_id, Stage.PULL)
    below = _all_below(worker)
    started = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - started < 8.0
    assert not [one for one in below if process.alive(one)]
    job = office.job(job_id)
    assert job.state is JobState.QUEUED
    assert _outcomes(job) == ["interrupted"]
    worker.start()
    assert _outcomes(office.done(job_id)) == ["interrupted", "succeeded"]


def test_a_cancel_is_heard_while_the_worker_drains(office: Office, worker: Worker) -> None:
    job_id = office.submit(pull="hang")
    office.reach(job_id, Stage.PULL)
    worker.launcher.terminate()
    office.cancel(job_id)
    assert office.done(job_id, timeout=3.0).state is JobState.CANCELED


def test_a_stage_past_its_deadline_fails_the_job(office: Office, worker: Worker) -> None:
    job = office.done(office.submit(quantize="daemons-hang"))
    assert job.state is JobState.FAILED
    assert job.reason is Reason.STAGE_TIMEOUT
    assert job.problem is not None
    assert job.problem.slug == "stage-timeout"
    assert not worker.stage_processes()


def test_a_job_past_its_deadline_expires(office: Office, worker: Worker) -> None:
    deadline = datetime.now(UTC) + timedelta(seconds=4)
    spec = JobSpec(source=RepoSource(repo="a/b"), format=Format.FP8, labels={"pull": "daemons-hang"}, deadline=deadline)
    job = office.done(office.submit(spec))
    assert job.state is JobState.EXPIRED
    assert datetime.now(UTC) - deadline < timedelta(seconds=3)
    assert not worker.stage_processes()


def test_redis_killed_and_restarted_while_idle(office: Office, worker: Worker, durable_redis: RedisServer) -> None:
    """C16: a worker that looks alive and takes no jobs."""
    for _ in range(3):
        office.done(office.submit())
        durable_redis.stop(signal.SIGKILL)
        durable_redis.start()
        assert office.done(office.submit(), timeout=15.0).state is JobState.SUCCEEDED


def test_a_worker_waits_for_a_redis_that_is_not_there_yet(
    office: Office, durable_redis: RedisServer, tmp_path: Path
) -> None:
    durable_redis.stop(signal.SIGKILL)
    worker = Worker(tmp_path, durable_redis.url, SMALL)
    worker.start()
    try:
        eventually(lambda: "Cannot connect to redis" in worker.log(), timeout=30.0)
        durable_redis.start()
        assert office.done(office.submit()).state is JobState.SUCCEEDED
    finally:
        worker.close()


def test_redis_away_for_longer_than_the_lease(office: Office, worker: Worker, durable_redis: RedisServer) -> None:
    """The job goes on and its ending is recorded, in the same attempt when nobody reaped first."""
    waiting = [office.submit() for _ in range(3)]
    job_id = office.submit(quantize="pause")
    office.reach(job_id, Stage.QUANTIZE)
    durable_redis.stop(signal.SIGKILL)
    gone = time.monotonic()
    eventually(lambda: time.monotonic() - gone > 3.0)
    durable_redis.start()
    job = office.done(job_id)
    assert job.state is JobState.SUCCEEDED
    assert len(job.attempts) <= 2
    assert {office.done(other).state for other in waiting} == {JobState.SUCCEEDED}


def test_a_stale_holder_is_not_heard(office: Office, worker: Worker, durable_redis: RedisServer) -> None:
    """A supervisor that slept through its lease stops its stage and writes nothing."""
    job_id = office.submit(quantize="hang-once")
    office.reach(job_id, Stage.QUANTIZE)
    sleeper = worker.supervisor
    sleeper.send_signal(signal.SIGSTOP)
    eventually(lambda: _outcomes(office.job(job_id)) == ["lost"], timeout=10.0)
    sleeper.send_signal(signal.SIGCONT)
    job = office.done(job_id)
    assert _outcomes(job) == ["lost", "succeeded"]
