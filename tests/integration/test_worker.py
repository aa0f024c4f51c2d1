"""The worker's processes on a real Redis with real Celery, over stages that behave as a label says."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftmill.jobs import Job
from draftmill.states import ASKED_FOR, JobState, Reason, Stage, StageState
from draftmill_worker import process
from tests.integration.worker_process import Office, Worker
from tests.redis_server import RedisServer
from tests.support import eventually

SMALL = "tests.integration.worker_stages.small"
STAGES = [stage for stage in Stage if stage not in ASKED_FOR]


@pytest.fixture(scope="module")
def shared(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(tmp_path_factory.mktemp("worker"), redis_server.url, SMALL, HF_TOKEN="hf_secret")
    worker.start()
    yield worker
    worker.close()


def _outcomes(job: Job) -> list[str | None]:
    return [attempt.outcome for attempt in job.attempts]


def _nothing_left(worker: Worker, job_id: str) -> None:
    eventually(lambda: not worker.stage_processes(), timeout=2.0)
    eventually(lambda: not list((worker.data / "jobs" / job_id).glob("*/scratch")), timeout=2.0)


def test_a_job_runs_its_stages(office: Office, shared: Worker) -> None:
    job = office.done(office.submit(quantize="progress"))
    assert job.state is JobState.SUCCEEDED
    assert not job.cached
    assert job.summary is not None
    assert job.resolved_spec is not None
    (attempt,) = job.attempts
    assert [record.name for record in attempt.stages] == STAGES
    assert {record.state for record in attempt.stages} == {StageState.SUCCEEDED}
    progress = attempt.stages[2].progress
    assert progress is not None
    assert (progress.done, progress.total) == (1000, 1000)
    messages = [event.data.get("message") for event in office.events(job.id)]
    assert "a thousand of them" in messages
    _nothing_left(shared, job.id)


def test_a_sealed_variant_skips_the_rest(office: Office, shared: Worker) -> None:
    job = office.done(office.submit(cached="yes"))
    assert job.state is JobState.SUCCEEDED
    assert job.cached
    states = [record.state for record in job.attempts[0].stages]
    assert states == [StageState.SUCCEEDED] * 2 + [StageState.SKIPPED] * 4


def test_five_doorbells_give_one_run(office: Office, shared: Worker) -> None:
    job_id = office.submit()
    for _ in range(4):
        office.ring(job_id)
    assert office.done(job_id).state is JobState.SUCCEEDED
    office.done(office.submit())  # Behind the duplicates: they were all looked at.
    assert len(office.job(job_id).attempts) == 1


@pytest.mark.parametrize(
    ("stage", "act", "reason", "slug"),
    [
        (Stage.PULL, "problem", Reason.PULL_FAILED, "shape-mismatch"),
        (Stage.PLAN, "problem", Reason.PLAN_REFUSED, "shape-mismatch"),
        (Stage.VERIFY, "problem", Reason.VERIFY_FAILED, "shape-mismatch"),
        (Stage.QUANTIZE, "bug", Reason.INTERNAL, "internal"),
        (Stage.SEAL, "full", Reason.SEAL_FAILED, "disk-budget"),
    ],
)
def test_a_failure_of_the_work_never_loops(
    office: Office, shared: Worker, stage: Stage, act: str, reason: Reason, slug: str
) -> None:
    job = office.done(office.submit(None, **{stage.value: act}))
    assert job.state is JobState.FAILED
    assert job.reason is reason
    assert job.problem is not None
    assert job.problem.slug == slug
    assert _outcomes(job) == ["failed"]
    assert job.attempts[0].stages[-1].state is StageState.FAILED
    _nothing_left(shared, job.id)


@pytest.mark.parametrize("act", ["crash", "exit"])
def test_a_crash_is_tried_again(office: Office, shared: Worker, act: str) -> None:
    job = office.done(office.submit(quantize=f"{act}-once"))
    assert job.state is JobState.SUCCEEDED
    assert _outcomes(job) == ["lost", "succeeded"]


def test_a_crash_that_always_comes_is_given_up(office: Office, shared: Worker) -> None:
    job = office.done(office.submit(quantize="crash"))
    assert job.state is JobState.FAILED
    assert job.reason is Reason.WORKER_LOST
    assert _outcomes(job) == ["lost"] * 3
    _nothing_left(shared, job.id)


@pytest.mark.parametrize("stage", STAGES)
def test_cancel_takes_two_seconds_and_leaves_nothing(office: Office, shared: Worker, stage: Stage) -> None:
    job_id = office.submit(None, **{stage.value: "daemons-hang"})
    office.reach(job_id, stage)
    # The stage, and two daemons in sessions of their own.
    eventually(lambda: len(shared.stage_processes()) == 3)
    running = shared.stage_processes()
    started = time.monotonic()
    office.cancel(job_id)
    job = office.done(job_id, timeout=5.0)
    assert time.monotonic() - started < 2.0
    assert not [one for one in running if process.alive(one)]
    assert job.state is JobState.CANCELED
    assert job.attempts[0].stages[-1].state is StageState.CANCELED
    _nothing_left(shared, job_id)


def test_a_job_canceled_while_it_waits_does_not_run(office: Office, shared: Worker) -> None:
    first = office.submit(pull="hang")
    office.reach(first, Stage.PULL)
    second = office.submit()
    assert office.cancel(second).state is JobState.CANCELED
    office.cancel(first)
    office.done(office.submit())
    assert office.job(second).attempts == ()


def test_the_token_is_for_pull_alone(office: Office, shared: Worker) -> None:
    job = office.done(office.submit(pull="token", quantize="token"))
    messages = [event.data["message"] for event in office.events(job.id) if event.kind == "log"]
    assert messages == ["HF_TOKEN is set", "HF_TOKEN is not set"]
    assert b"hf_secret" not in Path(f"/proc/{shared.template.pid}/environ").read_bytes()
    assert "hf_secret" not in shared.log()
    for path in shared.data.rglob("*"):
        assert not path.is_file() or b"hf_secret" not in path.read_bytes(), path


@pytest.mark.parametrize("victim", ["supervisor", "jobs", "template", "stage"])
def test_kill_9_of_one_process(office: Office, shared: Worker, victim: str) -> None:
    job_id = office.submit(quantize="daemons-hang-once")
    office.reach(job_id, Stage.QUANTIZE)
    eventually(lambda: len(shared.stage_processes()) == 3)
    running = shared.stage_processes()
    target = running[0] if victim == "stage" else getattr(shared, victim)
    target.kill()
    job = office.done(job_id)
    assert job.state is JobState.SUCCEEDED
    assert _outcomes(job) == ["lost", "succeeded"]
    assert not [one for one in running if process.alive(one)]
    _nothing_left(shared, job_id)
