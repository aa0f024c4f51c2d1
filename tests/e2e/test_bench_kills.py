"""kill -9 in the middle of a benchmark: of the engine, of the stage, of the worker. No engine is left, and it shows."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from draftmill import (
    Benchmark,
    Format,
    Gate,
    Job,
    JobSpec,
    JobState,
    ProblemError,
    PromptSet,
    Reason,
    RepoSource,
    Stage,
)
from draftmill.archive import Archive
from draftmill.archive.verify import verify
from draftmill.receipts import BootState, ReceiptSummary
from draftmill_worker import process
from tests.fixtures.hub import Hub, serving
from tests.integration.worker_process import Office, Worker
from tests.redis_server import RedisServer
from tests.support import eventually

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ENGINE = "draftmill_worker.bench.engine_main"
PATIENCE = 600.0
BOOT_PATIENCE = 120.0


@pytest.fixture(scope="module")
def hub_url(models: Path) -> Iterator[str]:
    pytest.importorskip("vllm")
    hub = Hub()
    hub.add("org/target", models / "target")
    hub.add("org/eagle3", models / "eagle3")
    with serving(hub) as url:
        yield url


@pytest.fixture(scope="module")
def worker(redis_server: RedisServer, hub_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(
        tmp_path_factory.mktemp("worker"), redis_server.url, "draftmill_worker.stages", DRAFTMILL_HUB_ENDPOINT=hub_url
    )
    worker.start()
    yield worker
    worker.close()


def _spec() -> JobSpec:
    benchmark = Benchmark(
        target=RepoSource(repo="org/target"),
        num_speculative_tokens=3,
        prompts=PromptSet(limit=5, max_tokens=32),
        no_speculation=False,
        gate=Gate(max_al_drop=0.9),
        fresh=True,
    )
    return JobSpec(source=RepoSource(repo="org/eagle3"), format=Format.FP8_PC_PT, benchmark=benchmark)


def _engines(worker: Worker) -> list[psutil.Process]:
    """Engine processes of this worker, wherever they hang in the tree of processes."""
    found = []
    for one in psutil.process_iter():
        try:
            words = one.cmdline()
            if ENGINE in words and any(str(worker.data) in word for word in words) and process.alive(one):
                found.append(one)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def _boots(worker: Worker) -> list[ReceiptSummary]:
    return list(Archive.of(worker.data).summaries())


def _amid_a_boot(office: Office, worker: Worker) -> tuple[str, psutil.Process, str]:
    """A job whose engine runs: the job, the engine, the boot."""
    before = len(_boots(worker))
    job_id = office.submit(_spec())
    office.reach(job_id, Stage.BENCH, timeout=PATIENCE)
    (engine,) = eventually(lambda: _engines(worker), timeout=BOOT_PATIENCE)
    assert len(_boots(worker)) == before + 1
    # Further than the interpreter's start: it has said something.
    log = Archive.of(worker.data).folders()[0].path / "stdout.log"
    eventually(lambda: log.stat().st_size, timeout=BOOT_PATIENCE)
    return job_id, engine, _boots(worker)[0].boot


def _state(worker: Worker, boot: str) -> BootState:
    return next(one.state for one in _boots(worker) if one.boot == boot)


def _intact(worker: Worker, office: Office) -> None:
    """A boot that died is no tampering."""
    heads = office.ask(lambda ledger: ledger.chain_heads()).items
    assert verify(worker.data / "receipts", heads).passed


def _cancel(office: Office, worker: Worker, job_id: str) -> Job:
    office.cancel(job_id)
    job = office.done(job_id)
    eventually(lambda: not _engines(worker), timeout=5.0)
    return job


def test_kill_9_of_the_engine_fails_the_job_by_name(office: Office, worker: Worker) -> None:
    job_id, engine, boot = _amid_a_boot(office, worker)
    engine.send_signal(signal.SIGKILL)
    job = office.done(job_id, PATIENCE)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.BENCH_FAILED)
    assert job.problem is not None
    assert job.problem.slug == "boot-failed"
    assert "SIGKILL" in job.problem.detail
    assert not _engines(worker)
    # The stage lived, and did not end in the engine's name what the engine did not.
    assert _state(worker, boot) is BootState.INCOMPLETE
    with pytest.raises(ProblemError, match="not-ready"):
        Archive.of(worker.data).receipt(boot)
    assert job.summary is None or job.summary.acceptance is None
    _intact(worker, office)


def test_kill_9_of_the_stage_then_a_cancel(office: Office, worker: Worker) -> None:
    job_id, engine, boot = _amid_a_boot(office, worker)
    (stage,) = (one for one in worker.template.children() if process.alive(one))
    stage.send_signal(signal.SIGKILL)
    eventually(lambda: not process.alive(engine), timeout=10.0)
    office.reach(job_id, Stage.BENCH, attempt=2, timeout=PATIENCE)
    assert _state(worker, boot) is BootState.INCOMPLETE
    (second,) = eventually(lambda: _engines(worker), timeout=BOOT_PATIENCE)
    assert second.pid != engine.pid
    job = _cancel(office, worker, job_id)
    assert job.state is JobState.CANCELED
    assert [attempt.outcome for attempt in job.attempts] == ["lost", "canceled"]
    _intact(worker, office)


def test_kill_9_of_the_worker_and_the_job_goes_on(office: Office, worker: Worker) -> None:
    job_id, engine, boot = _amid_a_boot(office, worker)
    worker.kill()
    eventually(lambda: not process.alive(engine), timeout=10.0)
    assert not _engines(worker)
    assert _state(worker, boot) is BootState.INCOMPLETE
    worker.start()
    job = office.done(job_id, PATIENCE)
    assert job.state is JobState.SUCCEEDED, job.problem
    assert [attempt.outcome for attempt in job.attempts] == ["lost", "succeeded"]
    assert _state(worker, boot) is BootState.INCOMPLETE
    sealed = [one for one in _boots(worker) if one.job == job_id]
    assert {(one.attempt, one.state) for one in sealed} == {(2, BootState.SEALED)}
    assert not _engines(worker)
    _intact(worker, office)
