"""What a worker counts over the lives of its processes, and what the ledger tells of waiting and running work."""

import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from draftmill.formats import Format
from draftmill.jobs import JobSpec, RepoSource, StageRecord
from draftmill.states import JobState, Outcome, Stage, StageState
from draftmill_service.ledger import Ledger, WorkerLedger
from draftmill_service.ledger.keys import BATCHES_QUEUE, JOBS_QUEUE
from draftmill_worker import process
from draftmill_worker.cli import _whole
from tests.integration.offices import office, redis_server
from tests.integration.worker_process import Office, Worker
from tests.redis_server import RedisServer, free_port
from tests.support import eventually

__all__ = ["office", "redis_server"]

SMALL = "tests.integration.worker_stages.small"
PATIENCE = 90.0
SPEC = JobSpec(source=RepoSource(repo="a/b"), format=Format.FP8)


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def worker(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Worker]:
    settings = {"DRAFTMILL_METRICS_PORT": str(port), "DRAFTMILL_BENCHMARKS": "false", "HF_TOKEN": "hf_secret"}
    worker = Worker(tmp_path_factory.mktemp("worker"), redis_server.url, SMALL, **settings)
    worker.start()
    yield worker
    worker.close()


def _value(port: int, name: str, **labels: str) -> float:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert "hf_secret" not in text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name == name and sample.labels == labels)


def test_counts_outlive_the_process_that_made_them(office: Office, worker: Worker, port: int) -> None:
    assert office.done(office.submit(), PATIENCE).state is JobState.SUCCEEDED
    assert office.done(office.submit(quantize="problem"), PATIENCE).state is JobState.FAILED
    stages = "draftmill_stage_seconds_count"
    assert _value(port, stages, stage="pull", outcome="succeeded") == 2
    assert _value(port, stages, stage="quantize", outcome="failed") == 1
    assert _value(port, "draftmill_bytes_out_total") == 1
    assert _value(port, "draftmill_attempts_total", outcome="failed") == 1
    supervisor = worker.supervisor
    supervisor.kill()
    eventually(lambda: not process.alive(supervisor), timeout=PATIENCE)
    assert office.done(office.submit(), PATIENCE).state is JobState.SUCCEEDED
    assert _value(port, stages, stage="pull", outcome="succeeded") == 3
    assert _value(port, "draftmill_attempts_total", outcome="succeeded") == 2


def test_health_asks_for_every_process(office: Office, worker: Worker) -> None:
    command = [sys.executable, "-m", "draftmill_worker.cli", "health"]
    office.done(office.submit(), PATIENCE)
    # Others may run workers on this machine; so the parts are looked at here, and the command is run once.
    assert _whole(worker.launcher)
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    worker.launcher.suspend()
    try:
        worker.template.kill()
        assert eventually(lambda: not _whole(worker.launcher))
    finally:
        worker.launcher.resume()
    eventually(lambda: _whole(worker.launcher), timeout=PATIENCE)


def test_a_worker_without_benchmarks_leaves_such_jobs(office: Office, worker: Worker) -> None:
    wanted = {"target": {"repo": "org/target"}, "num_speculative_tokens": 3}
    measured = office.submit(JobSpec.model_validate({**SPEC.model_dump(mode="json"), "benchmark": wanted}))
    # Behind it in the queue: by then it was looked at.
    assert office.done(office.submit(), PATIENCE).state is JobState.SUCCEEDED
    assert office.job(measured).attempts == ()
    assert office.cancel(measured).state is JobState.CANCELED


async def test_the_ledger_tells_what_waits_and_what_runs(ledger: Ledger, worker_ledger: WorkerLedger) -> None:
    nothing = await ledger.measures()
    assert nothing.queues[JOBS_QUEUE] == nothing.queues[BATCHES_QUEUE] == (0, 0, 0.0)
    assert (nothing.oldest_lease_seconds, nothing.least_remaining_seconds) == (0.0, None)
    jobs = [(await ledger.submit(SPEC, owner="test", bell="x"))[0] for _ in range(3)]
    first = worker_ledger.claim(jobs[0].id, "test", 60)
    second = worker_ledger.claim(jobs[1].id, "test", 30)
    assert first is not None
    assert second is not None
    worker_ledger.stage(first, StageRecord(name=Stage.QUANTIZE, state=StageState.RUNNING))
    measures = await ledger.measures()
    waiting = measures.queues[JOBS_QUEUE]
    assert (waiting.jobs, waiting.doorbells) == (1, 3)
    assert 0 <= waiting.oldest_seconds < 60
    assert {stage for stage, count in measures.running.items() if count} == {Stage.QUANTIZE}
    assert (measures.running[Stage.QUANTIZE], measures.between) == (1, 1)
    assert 0 <= measures.oldest_lease_seconds < 60
    assert measures.least_remaining_seconds is not None
    assert 0 < measures.least_remaining_seconds <= 30
    worker_ledger.renew(second, -5)
    late = (await ledger.measures()).least_remaining_seconds
    assert late is not None
    assert late < -4
    for claim in (first, second):
        worker_ledger.finish(claim, Outcome.SUCCEEDED)
    assert (await ledger.measures()).between == 0


@pytest.fixture
def worker_ledger(clean_redis: str) -> Iterator[WorkerLedger]:
    worker = WorkerLedger.connect(clean_redis)
    yield worker
    worker.close()
