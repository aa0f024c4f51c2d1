"""Real jobs through the worker: a drafter from the Hub stand-in to a sealed variant, killed and canceled on the way."""

import json
import os
import signal
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftmill.benchmarks import ArmName, Verdict
from draftmill.choices import AUTO, Auto, Choice
from draftmill.formats import Format
from draftmill.jobs import Job, JobSpec, PathSource, QuantizeOptions, RepoSource
from draftmill.plans import Preflight
from draftmill.reports import Manifest, VerifyReport
from draftmill.states import ASKED_FOR, JobState, Reason, Stage, StageState
from draftmill_service.retention.gc import Collector, Report
from draftmill_service.retention.layout import source_name
from draftmill_service.retention.policy import Limits
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.files import remove_tree
from tests.conftest import ServedHub
from tests.fixtures import verdicts
from tests.fixtures.hub import Hub, serving
from tests.fixtures.synthetic import Layout, build
from tests.integration.worker_process import Office, Worker
from tests.redis_server import RedisServer
from tests.support import eventually

# Each kill of the worker costs the imports of a new template.
pytestmark = pytest.mark.timeout(900)

HELD = "tests.integration.worker_stages.held"
REPO = "org/drafter"
# A job that is not held, through a template that may still have its imports to do.
PATIENCE = 240.0
STAGES = [stage for stage in Stage if stage not in ASKED_FOR]


class Watch:
    """Looks at variants/ all the time: whatever shows there must be whole and verified when it shows."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.seen: set[str] = set()
        """What appeared since the watch began."""
        self._before = self._names()
        self.faults: list[str] = []
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._leave.wait(0.002):
            for name in self._names() - self._before - self.seen:
                self.faults += self._judge(name)
                self.seen.add(name)

    def _names(self) -> set[str]:
        variants = self._data / "variants"
        return {path.name for path in variants.iterdir()} if variants.is_dir() else set()

    def _judge(self, name: str) -> Iterator[str]:
        evidence = self._data / "evidence" / name
        manifest = Manifest.model_validate_json((evidence / "manifest.json").read_bytes())
        if make_manifest(self._data / "variants" / name) != manifest:
            yield f"{name} is not what its manifest says"
        reports = [json.loads(path.read_bytes())["passed"] for path in evidence.glob("*/verify.json")]
        if True not in reports:
            yield f"{name} is not verified"


@pytest.fixture(scope="module")
def hub_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    standin = Hub()
    standin.add(REPO, build(tmp_path_factory.mktemp("drafter"), "eagle3", Layout(shards=2)))
    with serving(standin) as url:
        yield ServedHub(url, standin)


@pytest.fixture(scope="module")
def shared(
    redis_server: RedisServer, hub_of_module: ServedHub, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("worker")
    roots = str(folder / "local")
    worker = Worker(
        folder, redis_server.url, HELD, DRAFTMILL_HUB_ENDPOINT=hub_of_module.url, DRAFTMILL_ALLOWED_ROOTS=roots
    )
    worker.start()
    yield worker
    worker.close()


@pytest.fixture
def watch(shared: Worker) -> Iterator[Watch]:
    with Watch(shared.data) as watch:
        yield watch
    assert not watch.faults


def _spec(format: Format = Format.FP8, exclude: tuple[str, ...] = (), **labels: str) -> JobSpec:
    options = QuantizeOptions(exclude=exclude)
    return JobSpec(source=RepoSource(repo=REPO), format=format, quantize=options, labels=labels)


def _variant(worker: Worker, job: Job) -> Path:
    assert job.resolved_spec is not None
    return worker.data / "variants" / job.resolved_spec.variant


def _well(job: Job) -> None:
    assert job.state is JobState.SUCCEEDED, job.problem
    assert job.summary is not None
    assert job.summary.checks_failed == 0


@pytest.mark.parametrize("format", list(Format))
def test_from_repository_to_variant(office: Office, shared: Worker, watch: Watch, format: Format) -> None:
    job = office.done(office.submit(_spec(format)), PATIENCE)
    _well(job)
    assert not job.cached
    variant = _variant(shared, job)
    assert variant.stat().st_mode & 0o777 == 0o555
    assert {path.stat().st_mode & 0o777 for path in variant.rglob("*") if path.is_file()} == {0o444}
    report = shared.data / "evidence" / variant.name / job.id / "verify.json"
    assert VerifyReport.model_validate_json(report.read_bytes()).passed
    assert job.resolved_spec is not None
    assert job.resolved_spec.family == "eagle3"
    assert job.resolved_spec.source.commit is not None
    assert not list(shared.data.glob("jobs/*/*/scratch"))
    by_name = {record.name: record for record in job.attempts[0].stages}
    for stage, unit in ((Stage.PULL, "bytes"), (Stage.QUANTIZE, "bytes"), (Stage.VERIFY, "checks")):
        progress = by_name[stage].progress
        assert progress is not None
        assert progress.done == progress.total > 0
        assert progress.unit == unit


def test_the_same_request_again_is_answered_from_the_store(office: Office, shared: Worker, watch: Watch) -> None:
    first = office.done(office.submit(_spec(exclude=("*q_proj*", "*k_proj*", "*v_proj*"))), PATIENCE)
    _well(first)
    files = {path: path.stat().st_mtime_ns for path in _variant(shared, first).rglob("*")}
    again = office.done(office.submit(_spec(exclude=("*q_proj*", "*k_proj*", "*v_proj*"), team="other")), PATIENCE)
    _well(again)
    assert again.cached
    assert again.summary == first.summary
    assert [record.state for record in again.attempts[0].stages][2:] == [StageState.SKIPPED] * 4
    assert {path: path.stat().st_mtime_ns for path in _variant(shared, again).rglob("*")} == files


def test_a_scale_search_makes_another_variant_and_says_what_it_gained(
    office: Office, shared: Worker, watch: Watch
) -> None:
    source, search = RepoSource(repo=REPO), QuantizeOptions(nvfp4_scale_search=True)
    spec = JobSpec(source=source, format=Format.NVFP4, quantize=search)
    jobs = [office.done(office.submit(each), PATIENCE) for each in (spec, _spec(Format.NVFP4), spec)]
    for job in jobs:
        _well(job)
    assert _variant(shared, jobs[0]) == _variant(shared, jobs[2]) != _variant(shared, jobs[1])
    assert jobs[2].cached
    gained, plain, again = (job.summary.scale_search for job in jobs if job.summary is not None)
    assert plain is None
    assert gained == again
    assert gained is not None
    assert 0 < gained.relative_mse < gained.plain_relative_mse


def _collect(office: Office, worker: Worker, limits: Limits) -> Report:
    return office.ask(lambda ledger: Collector(worker.data, ledger, limits).run())


def test_what_retention_removed_is_built_again(
    office: Office, shared: Worker, hub_of_module: ServedHub, tmp_path: Path
) -> None:
    spec = _own_source(hub_of_module, tmp_path, Stage.PLAN)
    first = office.done(office.submit(spec), PATIENCE)
    _well(first)
    variant, evidence = _variant(shared, first), shared.data / "evidence" / _variant(shared, first).name
    before = {path.name: path.read_bytes() for path in variant.iterdir() if path.is_file()}
    # One that runs protects what is used meanwhile, although it has not said what it needs.
    running = _hold(office, shared, Stage.PULL, "pull:before", _own_source(hub_of_module, tmp_path / "b", Stage.PULL))
    assert _collect(office, shared, Limits(variants_bytes=0, sources_bytes=0)).removed == ()
    office.cancel(running)
    office.done(running)
    removed = {line.name for line in _collect(office, shared, Limits(variants_bytes=0, sources_bytes=0)).removed}
    assert f"variants/{variant.name}" in removed
    assert first.resolved_spec is not None
    source = first.resolved_spec.source
    assert source_name(str(source.repo), str(source.commit)) in removed
    assert (evidence / "tombstone.json").is_file()
    assert not variant.exists()
    again = office.done(office.submit(spec), PATIENCE)
    _well(again)
    assert not again.cached
    assert {path.name: path.read_bytes() for path in variant.iterdir() if path.is_file()} == before
    assert not (evidence / "tombstone.json").exists()


def test_a_damaged_variant_is_not_served(office: Office, shared: Worker) -> None:
    first = office.done(office.submit(_spec(exclude=("*o_proj*",))), PATIENCE)
    _well(first)
    victim = _variant(shared, first) / "config.json"
    victim.chmod(0o644)
    victim.write_text("{}")
    again = office.done(office.submit(_spec(exclude=("*o_proj*",))), PATIENCE)
    assert again.state is JobState.FAILED
    assert again.problem is not None
    assert again.problem.slug == "variant-differs"
    assert [offender.where for offender in again.problem.offenders] == ["config.json"]


def test_a_variant_that_failed_a_gate_is_not_served_as_good(office: Office, shared: Worker) -> None:
    spec = _spec(exclude=("*gate_proj*", "*up_proj*"))
    first = office.done(office.submit(spec), PATIENCE)
    _well(first)
    assert first.resolved_spec is not None
    variant = first.resolved_spec.variant
    verdicts.write(shared.data, variant, first.id, Verdict.FAILED)
    withheld = office.done(office.submit(spec), PATIENCE)
    assert (withheld.state, withheld.reason, withheld.cached) == (JobState.FAILED, Reason.GATE_FAILED, True)
    assert withheld.problem is not None
    assert withheld.problem.slug == "gate-failed"
    assert first.id in withheld.problem.detail
    offenders = [(offender.where, offender.message) for offender in withheld.problem.offenders]
    boots = [("receipt", verdicts.boot_of(arm)) for arm in (ArmName.VARIANT, ArmName.CONTROL)]
    assert offenders == [(f"gate of job {first.id}", verdicts.FAILURE), *boots]
    assert withheld.summary is not None
    assert withheld.summary.acceptance is not None
    assert withheld.resolved_spec == first.resolved_spec
    # Who says that he knows gets it, and the verdict with it.
    taken = office.done(office.submit(spec.model_copy(update={"accept_failed_gate": True})), PATIENCE)
    _well(taken)
    assert taken.cached
    assert taken.summary is not None
    assert taken.summary.acceptance is not None
    assert taken.summary.acceptance.verdict is Verdict.FAILED
    # The same bytes built anew would be no better.
    remove_tree(_variant(shared, first))
    again = office.done(office.submit(spec), PATIENCE)
    assert (again.reason, again.cached) == (Reason.GATE_FAILED, False)
    # A newer benchmark that passed speaks for it.
    verdicts.write(shared.data, variant, again.id, Verdict.PASSED)
    _well(office.done(office.submit(spec), PATIENCE))


def test_from_a_local_folder(office: Office, shared: Worker, watch: Watch) -> None:
    folder = build(shared.folder / "local" / "run" / "exported-checkpoint-10", "eagle3", Layout(seed=7))
    spec = JobSpec(source=PathSource(path=str(folder.parent)), format=Format.FP8)
    job = office.done(office.submit(spec), PATIENCE)
    _well(job)


def test_what_is_refused_leaves_no_variant(office: Office, shared: Worker, watch: Watch) -> None:
    job = office.done(office.submit(_spec(exclude=("*nothing*",))), PATIENCE)
    assert job.state is JobState.FAILED
    assert job.reason is Reason.PLAN_REFUSED
    assert job.problem is not None
    assert job.problem.slug == "unused-exclude"
    missing = JobSpec(source=RepoSource(repo="org/missing"), format=Format.FP8)
    job = office.done(office.submit(missing), PATIENCE)
    assert job.reason is Reason.PULL_FAILED
    assert not watch.seen


def test_what_fails_its_checks_is_never_sealed(office: Office, shared: Worker, watch: Watch) -> None:
    job = office.done(office.submit(_spec(exclude=("*fc*",), meddle="with the variant")), PATIENCE)
    assert job.state is JobState.FAILED
    assert job.reason is Reason.VERIFY_FAILED
    assert job.problem is not None
    assert job.problem.slug == "verify-failed"
    assert job.problem.offenders
    assert not watch.seen
    assert job.resolved_spec is not None
    evidence = shared.data / "evidence" / job.resolved_spec.variant
    assert not VerifyReport.model_validate_json((evidence / job.id / "verify.json").read_bytes()).passed
    assert not (evidence / "manifest.json").exists()
    # The failed report does not stand in the way of a variant that is well.
    again = office.done(office.submit(_spec(exclude=("*fc*",))), PATIENCE)
    _well(again)
    assert not again.cached


def test_a_source_that_changed_meanwhile_is_not_sealed(
    office: Office, shared: Worker, watch: Watch, hub_of_module: ServedHub, tmp_path: Path
) -> None:
    spec = _own_source(hub_of_module, tmp_path, Stage.SEAL)
    spec = spec.model_copy(update={"labels": {"meddle": "with the source"}})
    job = office.done(office.submit(spec), PATIENCE)
    assert job.state is JobState.FAILED
    assert job.reason is Reason.SEAL_FAILED
    assert job.problem is not None
    assert job.problem.slug == "source-changed"
    assert not watch.seen


def _held(stage: Stage) -> str:
    """Where a stage is held still: amid its work where it reports progress, else when it has done it."""
    return f"{stage}:{'during' if stage in (Stage.PULL, Stage.QUANTIZE, Stage.VERIFY) else 'after'}"


def _hold(office: Office, worker: Worker, stage: Stage, moment: str, spec: JobSpec) -> str:
    job_id = office.submit(spec.model_copy(update={"labels": {"hold": moment}}))
    office.reach(job_id, stage, timeout=PATIENCE)
    eventually((worker.data / "jobs" / job_id / "1" / stage.value / "held").exists, timeout=PATIENCE)
    return job_id


def _own_source(hub: ServedHub, tmp_path: Path, stage: Stage) -> JobSpec:
    """A repository of this test's own, so that pull has something to pull."""
    repo = f"org/{stage.value}-{tmp_path.name.replace('_', '-')[:40]}"
    hub.add(repo, build(tmp_path / "drafter", "eagle3", Layout(shards=2, seed=zlib.crc32(str(tmp_path).encode()))))
    return JobSpec(source=RepoSource(repo=repo), format=Format.NVFP4)


@pytest.mark.parametrize("stage", STAGES)
def test_kill_9_of_the_worker_in_every_stage(
    office: Office, shared: Worker, watch: Watch, hub_of_module: ServedHub, tmp_path: Path, stage: Stage
) -> None:
    job_id = _hold(office, shared, stage, _held(stage), _own_source(hub_of_module, tmp_path, stage))
    shared.kill()
    shared.start()
    job = office.done(job_id, PATIENCE)
    _well(job)
    assert [attempt.outcome for attempt in job.attempts] == ["lost", "succeeded"]
    # What was sealed before the kill is found sealed by the next attempt.
    assert job.cached == (stage is Stage.SEAL)
    assert watch.seen == {_variant(shared, job).name}
    eventually(lambda: not list(shared.data.glob("jobs/*/*/scratch")))


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_sigterm_of_the_worker_in_every_stage(
    office: Office, shared: Worker, watch: Watch, hub_of_module: ServedHub, tmp_path: Path, stage: Stage
) -> None:
    job_id = _hold(office, shared, stage, _held(stage), _own_source(hub_of_module, tmp_path, stage))
    assert shared.stop(60.0) == 0
    assert not list(shared.data.glob("jobs/*/*/scratch"))
    shared.start()
    job = office.done(job_id, PATIENCE)
    _well(job)
    assert [attempt.outcome for attempt in job.attempts] == ["interrupted", "succeeded"]
    assert job.cached == (stage is Stage.SEAL)
    assert watch.seen == {_variant(shared, job).name}


@pytest.mark.parametrize("stage", STAGES)
def test_kill_9_of_the_stage(
    office: Office, shared: Worker, watch: Watch, hub_of_module: ServedHub, tmp_path: Path, stage: Stage
) -> None:
    job_id = _hold(office, shared, stage, _held(stage), _own_source(hub_of_module, tmp_path, stage))
    os.kill(shared.stage_processes()[0].pid, signal.SIGKILL)
    job = office.done(job_id, PATIENCE)
    _well(job)
    assert [attempt.outcome for attempt in job.attempts] == ["lost", "succeeded"]
    assert watch.seen == {_variant(shared, job).name}


@pytest.mark.parametrize("stage", STAGES)
def test_cancel_in_every_stage(
    office: Office, shared: Worker, watch: Watch, hub_of_module: ServedHub, tmp_path: Path, stage: Stage
) -> None:
    job_id = _hold(office, shared, stage, _held(stage), _own_source(hub_of_module, tmp_path, stage))
    started = time.monotonic()
    office.cancel(job_id)
    job = office.done(job_id)
    assert time.monotonic() - started < 2.0
    assert job.state is JobState.CANCELED
    assert not shared.stage_processes()
    eventually(lambda: not list(shared.data.glob("jobs/*/*/scratch")))
    # Sealing was done when it was held: the variant is whole, and its report is with it.
    assert len(watch.seen) == (stage is Stage.SEAL)


def test_a_cancel_amid_a_slow_download(
    office: Office, shared: Worker, hub_of_module: ServedHub, tmp_path: Path
) -> None:
    spec = _own_source(hub_of_module, tmp_path, Stage.PULL)
    assert isinstance(spec.source, RepoSource)
    faults = hub_of_module.hub.repos[spec.source.repo].faults
    faults.bytes_per_second = 20_000
    faults.only = "*.safetensors"
    job_id = office.submit(spec)
    office.reach(job_id, Stage.PULL, timeout=PATIENCE)
    eventually(lambda: office.job(job_id).attempts[0].stages[0].progress, timeout=30.0)
    started = time.monotonic()
    office.cancel(job_id)
    assert office.done(job_id).state is JobState.CANCELED
    assert time.monotonic() - started < 2.0
    assert not shared.stage_processes()


def test_redis_killed_mid_job_loses_nothing(
    office: Office, shared: Worker, redis_server: RedisServer, hub_of_module: ServedHub, tmp_path: Path
) -> None:
    spec = _own_source(hub_of_module, tmp_path, Stage.PULL)
    assert isinstance(spec.source, RepoSource)
    faults = hub_of_module.hub.repos[spec.source.repo].faults
    faults.bytes_per_second = 200_000
    faults.only = "*.safetensors"
    job_id = office.submit(spec)
    office.reach(job_id, Stage.PULL, timeout=PATIENCE)
    redis_server.stop(signal.SIGKILL)
    redis_server.start()
    job = office.done(job_id, PATIENCE)
    _well(job)
    assert len(job.attempts) == 1


def _preflight(office: Office, spec: JobSpec) -> Preflight:
    preflight_id = office.ask_preflight(spec)
    answer = office.ask(lambda ledger: ledger.preflight_answer(preflight_id, 30.0))
    assert answer is not None
    return answer


def test_preflight(office: Office, shared: Worker, hub_of_module: ServedHub, tmp_path: Path) -> None:
    spec = _own_source(hub_of_module, tmp_path, Stage.PLAN)
    answer = _preflight(office, spec)
    assert answer.ok
    assert answer.plan is not None
    assert answer.plan.family == "eagle3"
    assert answer.download_bytes is not None
    assert answer.download_bytes > answer.plan.source_bytes
    refused = _preflight(office, _spec(exclude=("*nothing*",)))
    assert not refused.ok
    assert refused.problem is not None
    assert refused.problem.slug == "unused-exclude"
    assert not list(shared.data.glob(f"sources/*{tmp_path.name[:10]}*"))


def test_preflight_does_not_wait_behind_a_job(office: Office, shared: Worker, hub_of_module: ServedHub) -> None:
    job_id = office.submit(_spec(Format.NVFP4, hold="pull:before"))
    office.reach(job_id, Stage.PULL, timeout=PATIENCE)
    assert _preflight(office, _spec()).ok
    office.cancel(job_id)
    assert office.done(job_id).state is JobState.CANCELED


def test_auto_chooses_within_the_size_and_says_what_it_weighed(office: Office, shared: Worker, watch: Watch) -> None:
    auto = Auto(formats=(Format.NVFP4, Format.W4A16_NVFP4, Format.FP8), max_size=0.7)
    spec = JobSpec(source=RepoSource(repo=REPO), format=AUTO, auto=auto)
    job = office.done(office.submit(spec), PATIENCE)
    _well(job)
    assert job.resolved_spec is not None
    evidence = shared.data / "evidence" / job.resolved_spec.variant / job.id / "choice.json"
    choice = Choice.model_validate_json(evidence.read_bytes())
    assert {candidate.format for candidate in choice.candidates} >= {Format.NVFP4, Format.W4A16_NVFP4}
    assert job.summary is not None
    assert job.summary.variant_bytes == choice.choice.variant_bytes <= 0.7 * job.summary.source_bytes
    assert job.resolved_spec.format is choice.choice.format
    assert job.resolved_spec.quantize.exclude == choice.choice.exclude
    options = QuantizeOptions(exclude=choice.choice.exclude, nvfp4_scale_search=choice.choice.scale_search)
    assert job.resolved_spec.quantize == options
    named = JobSpec(source=spec.source, format=choice.choice.format, quantize=options)
    again = office.done(office.submit(named), PATIENCE)
    assert again.cached
    assert _variant(shared, again) == _variant(shared, job)


def test_auto_refuses_a_budget_that_nothing_keeps_to(office: Office, shared: Worker) -> None:
    spec = JobSpec(source=RepoSource(repo=REPO), format=AUTO, auto=Auto(formats=(Format.FP8,), max_size=0.01))
    job = office.done(office.submit(spec), PATIENCE)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.CHOOSE_FAILED)
    assert job.problem is not None
    assert job.problem.slug == "budget-unreachable"
    assert [offender.where for offender in job.problem.offenders] == ["fp8, 0 kept"]
