"""Two workers and one GPU, as far as nvidia-smi says: the second job waits, is seen to wait, and is let go."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from draftmill.jobs import DeviceWait, StageRecord
from draftmill.states import JobState, Reason, Stage, StageState
from tests.integration.worker_process import Office, Worker
from tests.redis_server import RedisServer
from tests.support import eventually

pytestmark = pytest.mark.timeout(300)

SMALL = "tests.integration.worker_stages.small"
SMI = """#!/bin/sh
echo '0, GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77'
"""
PATIENCE = 60.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with an nvidia-smi that lists one GPU."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def _worker(folder: Path, redis_server: RedisServer, path: str) -> Worker:
    folder.mkdir()
    return Worker(folder, redis_server.url, SMALL, PATH=path, DRAFTMILL_DEVICE="cuda")


@pytest.fixture
def workers(redis_server: RedisServer, path: str, tmp_path: Path) -> Iterator[tuple[Worker, Worker]]:
    pair = _worker(tmp_path / "a", redis_server, path), _worker(tmp_path / "b", redis_server, path)
    try:
        for worker in pair:
            worker.start()
        yield pair
    finally:
        for worker in pair:
            worker.close()


def _quantize(office: Office, job_id: str, attempt: int = 1) -> StageRecord | None:
    attempts = office.job(job_id).attempts
    stages = attempts[attempt - 1].stages if len(attempts) >= attempt else ()
    return next((record for record in stages if record.name is Stage.QUANTIZE), None)


def _state(office: Office, job_id: str, state: StageState, attempt: int = 1) -> StageRecord:
    def reached() -> StageRecord | None:
        record = _quantize(office, job_id, attempt)
        return record if record is not None and record.state is state else None

    record = eventually(reached, timeout=PATIENCE)
    assert record is not None
    return record


def test_the_second_waits_until_the_first_is_gone(office: Office, workers: tuple[Worker, Worker]) -> None:
    holder = office.submit(quantize="hang-once")
    assert _state(office, holder, StageState.RUNNING).devices == ("gpu0",)
    canceled = office.submit()
    waiting = _state(office, canceled, StageState.PENDING)
    assert waiting.waiting == DeviceWait(place=1, devices=1)
    office.cancel(canceled)
    job = office.done(canceled)
    assert (job.state, job.reason) == (JobState.CANCELED, Reason.CANCELED_BY_USER)
    assert _state(office, canceled, StageState.CANCELED).waiting is None

    waiter = office.submit()
    _state(office, waiter, StageState.PENDING)
    (running,) = [worker for worker in workers if worker.stage_processes()]
    running.kill()
    assert office.done(waiter, PATIENCE).state is JobState.SUCCEEDED
    # The lost one comes again, and the GPU is free for it.
    assert office.done(holder, PATIENCE).state is JobState.SUCCEEDED
    assert [attempt.outcome for attempt in office.job(holder).attempts] == ["lost", "succeeded"]
    assert _state(office, holder, StageState.SUCCEEDED, attempt=2).devices == ("gpu0",)


def test_more_than_the_worker_has_is_refused_by_name(
    office: Office, redis_server: RedisServer, path: str, tmp_path: Path
) -> None:
    (tmp_path / "c").mkdir()
    worker = Worker(tmp_path / "c", redis_server.url, SMALL, PATH=path, DRAFTMILL_DEVICE="cuda:1")
    try:
        worker.start()
        job = office.done(office.submit(), PATIENCE)
    finally:
        worker.close()
    assert (job.state, job.reason) == (JobState.FAILED, Reason.QUANTIZE_FAILED)
    assert job.problem is not None
    assert job.problem.slug == "engine-unavailable"
