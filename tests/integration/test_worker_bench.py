"""The bench stage among the others, over stages that behave as a label says."""

from collections.abc import Iterator

import pytest

from draftmill.benchmarks import Benchmark
from draftmill.formats import Format
from draftmill.jobs import Job, JobSpec, RepoSource
from draftmill.states import ASKED_FOR, JobState, Reason, Stage, StageState
from tests.integration.worker_process import Office, Worker
from tests.redis_server import RedisServer

BENCHMARK = Benchmark(target=RepoSource(repo="a/target"), num_speculative_tokens=3)


@pytest.fixture(scope="module")
def worker(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("worker")
    worker = Worker(folder, redis_server.url, "tests.integration.worker_stages.small", HF_TOKEN="hf_secret")
    worker.start()
    yield worker
    worker.close()


def _spec(benchmark: Benchmark | None = BENCHMARK, **labels: str) -> JobSpec:
    return JobSpec(source=RepoSource(repo="a/b"), format=Format.FP8, benchmark=benchmark, labels=labels)


def _stages(job: Job) -> dict[Stage, StageState]:
    return {record.name: record.state for record in job.attempts[-1].stages}


def test_bench_comes_last_and_only_when_asked_for(office: Office, worker: Worker) -> None:
    job = office.done(office.submit(_spec()))
    assert job.state is JobState.SUCCEEDED
    assert list(_stages(job)) == [stage for stage in Stage if stage not in ASKED_FOR - {Stage.BENCH}]
    plain = office.done(office.submit(_spec(None)))
    assert list(_stages(plain)) == [stage for stage in Stage if stage not in ASKED_FOR]


def test_bench_runs_for_a_variant_from_the_store(office: Office, worker: Worker) -> None:
    job = office.done(office.submit(_spec(cached="yes")))
    assert job.cached
    states = _stages(job)
    assert {stage for stage, state in states.items() if state is StageState.SUCCEEDED} == {
        Stage.PULL,
        Stage.PLAN,
        Stage.BENCH,
    }


def test_a_failed_gate_is_its_own_reason_and_keeps_the_summary(office: Office, worker: Worker) -> None:
    job = office.done(office.submit(_spec(bench="gate")))
    assert (job.state, job.reason) == (JobState.FAILED, Reason.GATE_FAILED)
    assert job.summary is not None
    assert _stages(job)[Stage.BENCH] is StageState.FAILED


@pytest.mark.parametrize(("act", "reason"), [("problem", Reason.BENCH_FAILED), ("bug", Reason.INTERNAL)])
def test_a_bench_that_fails(office: Office, worker: Worker, act: str, reason: Reason) -> None:
    job = office.done(office.submit(_spec(bench=act)))
    assert (job.state, job.reason, job.summary) == (JobState.FAILED, reason, None)


@pytest.mark.parametrize(
    ("stage", "held"), [(Stage.PULL, "HF_TOKEN"), (Stage.SEAL, ""), (Stage.BENCH, "DRAFTMILL_REDIS_URL")]
)
def test_each_stage_is_handed_its_own_secrets_alone(office: Office, worker: Worker, stage: Stage, held: str) -> None:
    job = office.done(office.submit(_spec(**{stage.value: "secrets"})))
    messages = [str(event.data.get("message")) for event in office.events(job.id)]
    assert f"secrets: {held}" in messages
