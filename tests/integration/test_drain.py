"""SIGTERM to each process in each stage: the attempt says `interrupted`, the job ends right, nothing is left over."""

from collections.abc import Iterator

import psutil
import pytest

from draftmill.jobs import Job, JobSpec
from draftmill.states import JobState, Stage, StageState
from draftmill_worker import process
from tests.integration.offices import office, redis_server
from tests.integration.worker_process import Office, Worker
from tests.redis_server import RedisServer
from tests.support import eventually

__all__ = ["office", "redis_server"]

SMALL = "tests.integration.worker_stages.small"
BENCHMARK = {"target": {"repo": "org/target"}, "num_speculative_tokens": 3}
PATIENCE = 90.0
# A worker that is stopped whole is in the normal run by test_worker_outages.py.
VICTIMS = [pytest.param("launcher", marks=pytest.mark.slow), "jobs", "supervisor", "template", "stage"]


def each_stage(usual: Stage) -> list[object]:
    """One stage in the normal run, all of them in the long one."""
    return [pytest.param(stage, marks=[] if stage is usual else [pytest.mark.slow]) for stage in Stage]


@pytest.fixture(scope="module")
def shared(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("worker")
    worker = Worker(folder, redis_server.url, SMALL, DRAFTMILL_DRAIN_SECONDS="0.5")
    worker.start()
    yield worker
    worker.close()


def spec(**labels: str) -> JobSpec:
    """Of a job that comes to the stage that its labels name."""
    asked: dict[str, object] = {"format": "fp8", "benchmark": BENCHMARK}
    if labels.keys() & {Stage.CAPTURE, Stage.HEADS}:
        asked = {"format": "keep", "head": {"method": "rtn"}}
    elif Stage.CHOOSE in labels:
        asked |= {"format": "auto", "auto": {"max_size": 0.5}}
    return JobSpec.model_validate({"source": {"repo": "a/b"}, "labels": labels, **asked})


def outcomes(job: Job) -> list[str | None]:
    return [attempt.outcome for attempt in job.attempts]


def terminate(worker: Worker, victim: str) -> psutil.Process:
    """SIGTERM; the process, which is to end."""
    target = worker.stage_processes()[0] if victim == "stage" else getattr(worker, victim)
    assert isinstance(target, psutil.Process)
    target.terminate()
    return target


@pytest.mark.parametrize("stage", each_stage(Stage.QUANTIZE))
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_long_stage_is_handed_back(office: Office, shared: Worker, victim: str, stage: Stage) -> None:
    # A stage in a process that ignores SIGTERM cannot be told to stop; its own case is one that does not.
    act = "wait-once" if victim == "stage" else "daemons-hang-once"
    job_id = office.submit(spec(**{stage.value: act}))
    office.reach(job_id, stage, timeout=PATIENCE)
    eventually(lambda: len(shared.stage_processes()) == (1 if victim == "stage" else 3))
    running = shared.stage_processes()
    target = terminate(shared, victim)
    eventually(lambda: not process.alive(target), timeout=PATIENCE)
    if victim == "launcher":
        shared.start()
    job = office.done(job_id, PATIENCE)
    assert job.state is JobState.SUCCEEDED
    assert outcomes(job) == ["interrupted", "succeeded"]
    last = job.attempts[0].stages[-1]
    assert (last.name, last.state) == (stage, StageState.INTERRUPTED)
    assert not [one for one in running if process.alive(one)]
    eventually(lambda: not list((shared.data / "jobs" / job_id).glob("*/scratch")))


@pytest.mark.slow
def test_idle_processes_end_and_are_started_again(office: Office, shared: Worker) -> None:
    office.done(office.submit(), PATIENCE)
    for victim in ("supervisor", "template", "jobs"):
        target = terminate(shared, victim)
        eventually(lambda target=target: not process.alive(target), timeout=PATIENCE)
        assert outcomes(office.done(office.submit(), PATIENCE)) == ["succeeded"]


@pytest.mark.slow
def test_a_whole_group_is_told_to_stop(office: Office, shared: Worker) -> None:
    """As a process manager does that signals every process it can see, engines among them."""
    job_id = office.submit(spec(quantize="wait-once"))
    office.reach(job_id, Stage.QUANTIZE, timeout=PATIENCE)
    eventually(shared.stage_processes)
    everyone = [shared.launcher, *shared.launcher.children(recursive=True)]
    for one in everyone:
        one.terminate()
    eventually(lambda: not [one for one in everyone if process.alive(one)], timeout=PATIENCE)
    assert outcomes(office.job(job_id)) == ["interrupted"]
    shared.start()
    assert outcomes(office.done(job_id, PATIENCE)) == ["interrupted", "succeeded"]


def test_a_stage_that_is_always_stopped_does_not_go_round_for_ever(office: Office, shared: Worker) -> None:
    """As a daemon does that watches over memory: the first times are interruptions, later ones are losses."""
    job = office.done(office.submit(quantize="told"), timeout=PATIENCE)
    assert job.state is JobState.FAILED
    assert outcomes(job) == ["interrupted"] * 3 + ["lost"] * 3
