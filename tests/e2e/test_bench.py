"""A job with a benchmark through the whole service, on real vLLM: control and variant, gate, receipts, evidence."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from draftmill import (
    Acceptance,
    Benchmark,
    Client,
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
    StageState,
)
from draftmill.archive import Archive
from draftmill.archive.layout import MANIFEST
from draftmill.benchmarks import Verdict
from draftmill.receipts import BootState
from tests.e2e.conftest import World
from tests.e2e.embedded import Up

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

PROMPTS = PromptSet(builtin="draftmill-1", limit=10, max_tokens=48)
# Ten prompts leave an interval of many percent.
GATE = Gate(max_al_drop=0.3, min_control_al=2.0)


@dataclass(frozen=True)
class Measured:
    """The first job, on which the others build."""

    up: Up
    client: Client
    spec: JobSpec
    job: Job
    acceptance: Acceptance

    def again(self, **changes: object) -> Job:
        """A job with another benchmark, or with none."""
        benchmark = self.spec.benchmark.model_copy(update=changes) if self.spec.benchmark and changes else None
        return self.client.wait(self.client.submit(self.spec.model_copy(update={"benchmark": benchmark})))

    def stages(self, job: Job) -> dict[Stage, StageState]:
        return {record.name: record.state for record in job.attempts[-1].stages}


@pytest.fixture(scope="module")
def measured(up: Up, world: World, models: Path) -> Iterator[Measured]:
    pytest.importorskip("vllm")
    world.hub.add("org/target", models / "target")
    world.hub.add("org/eagle3", models / "eagle3")
    benchmark = Benchmark(target=RepoSource(repo="org/target"), num_speculative_tokens=3, prompts=PROMPTS, gate=GATE)
    spec = JobSpec(source=RepoSource(repo="org/eagle3"), format=Format.FP8_PC_PT, benchmark=benchmark)
    with up.client() as client:
        job = client.wait(client.submit(spec))
        assert job.state is JobState.SUCCEEDED, job.problem
        yield Measured(up, client, spec, job, client.acceptance(job))


def test_the_variant_beside_its_control(measured: Measured) -> None:
    found = measured.acceptance
    assert found.none is not None
    assert found.control.al is not None
    assert found.variant.al is not None
    assert found.control.al >= 2.0
    assert found.variant.al - 1 >= 0.7 * (found.control.al - 1)
    for arm in (found.control, found.variant):
        assert arm.counts is not None
        assert arm.counts.drafts > 0
        assert sum(prompt.counts.drafts for prompt in arm.prompts if prompt.counts) == arm.counts.drafts
        assert arm.parts_from_none == ()
        assert len(arm.conditional_acceptance) == 3
        assert arm.output_sha256 == found.none.output_sha256
    assert found.change.low <= found.change.value <= found.change.high
    assert found.gate.verdict is Verdict.PASSED
    assert len({arm.receipt for arm in (found.none, found.control, found.variant)}) == 3


def test_the_job_says_what_was_found(measured: Measured) -> None:
    summary = measured.job.summary
    assert summary is not None
    assert summary.acceptance is not None
    assert summary.acceptance.job == measured.job.id
    assert summary.acceptance.al == measured.acceptance.variant.al
    assert summary.acceptance.receipts[0] == measured.acceptance.variant.receipt
    shown = measured.up.run("jobs", "show", measured.job.id)
    assert f"acceptance {measured.acceptance.variant.al:.3f}" in shown.stdout
    table = measured.up.run("jobs", "acceptance", measured.job.id)
    assert table.returncode == 0
    assert "gate passed" in table.stdout
    assert json.loads(measured.up.run("jobs", "acceptance", measured.job.id, "--json").stdout)["schema"]


def test_evidence_lies_beside_the_variant_not_in_it(measured: Measured) -> None:
    assert measured.job.resolved_spec is not None
    variant = measured.job.resolved_spec.variant
    evidence = measured.up.data_dir / "evidence" / variant / measured.job.id
    profile = json.loads((evidence / "profile.json").read_text())
    assert profile["arms"]["variant"]["conditional_acceptance"] == list(
        measured.acceptance.variant.conditional_acceptance
    )
    assert not list((measured.up.data_dir / "variants" / variant).glob("acceptance*"))


def test_receipts_of_every_boot(measured: Measured) -> None:
    job = measured.job
    assert job.resolved_spec is not None
    for arm, variant in ((measured.acceptance.control, None), (measured.acceptance.variant, job.resolved_spec.variant)):
        receipt = measured.client.receipt(arm.receipt)
        assert (receipt.job, receipt.attempt, receipt.counts) == (job.id, 1, arm.counts)
        assert all(rule.passed for rule in receipt.rules)
        assert receipt.drafter is not None
        assert receipt.drafter.variant == variant
        assert receipt.target.commit is not None
    assert measured.up.run("receipts", "verify").returncode == 0


def test_the_same_job_is_answered_from_the_archive(measured: Measured) -> None:
    again = measured.again(gate=GATE)
    found = measured.client.acceptance(again)
    assert measured.stages(again)[Stage.SEAL] is StageState.SKIPPED
    assert measured.stages(again)[Stage.BENCH] is StageState.SUCCEEDED
    assert found.control_key == measured.acceptance.control_key
    assert (found.control.reused, found.variant.reused) == (True, True)
    assert found.control.receipt == measured.acceptance.control.receipt
    assert found.change == measured.acceptance.change


def test_a_failed_gate_keeps_variant_and_numbers_and_is_not_forgotten(measured: Measured) -> None:
    failed = measured.again(gate=Gate(min_al=3.999))
    assert (failed.state, failed.reason) == (JobState.FAILED, Reason.GATE_FAILED)
    assert failed.problem is not None
    assert failed.problem.slug == "gate-failed"
    assert failed.summary is not None
    assert failed.summary.acceptance is not None
    assert failed.summary.acceptance.verdict is Verdict.FAILED
    assert measured.client.acceptance(failed).variant.al == measured.acceptance.variant.al
    assert failed.resolved_spec is not None
    assert (measured.up.data_dir / "variants" / failed.resolved_spec.variant / "config.json").is_file()
    with pytest.raises(ProblemError, match="gate-failed"):
        measured.client.artifacts(failed)
    # A job that asks for no benchmark is not given the variant, unless it says that it knows.
    withheld = measured.again()
    assert (withheld.state, withheld.reason) == (JobState.FAILED, Reason.GATE_FAILED)
    assert withheld.problem is not None
    assert failed.id in withheld.problem.detail
    receipts = {offender.message for offender in withheld.problem.offenders if offender.where == "receipt"}
    assert receipts == set(failed.summary.acceptance.receipts)
    assert Stage.BENCH not in measured.stages(withheld)
    taken = measured.spec.model_copy(update={"benchmark": None, "accept_failed_gate": True})
    plain = measured.client.wait(measured.client.submit(taken))
    assert plain.state is JobState.SUCCEEDED
    assert Stage.BENCH not in measured.stages(plain)
    assert plain.summary is not None
    assert plain.summary.acceptance is not None
    assert (plain.summary.acceptance.job, plain.summary.acceptance.verdict) == (failed.id, Verdict.FAILED)
    assert "gate       FAILED" in measured.up.run("jobs", "show", plain.id).stdout


def test_measured_again_the_receipts_differ_in_nothing(measured: Measured) -> None:
    again = measured.again(fresh=True, no_speculation=False)
    assert again.state is JobState.SUCCEEDED, again.problem
    found = measured.client.acceptance(again)
    for arm, before in ((found.control, measured.acceptance.control), (found.variant, measured.acceptance.variant)):
        assert arm.receipt != before.receipt
        assert arm.counts == before.counts
        assert measured.client.diff_receipts(before.receipt, arm.receipt).changes == ()
        assert measured.client.diff_receipts(before.receipt, arm.receipt, all=True).changes
    assert measured.up.run("receipts", "verify").returncode == 0


@pytest.mark.slow
def test_prompts_in_flight_together_are_counted_together(measured: Measured) -> None:
    job = measured.again(concurrency=4, repeats=2, no_speculation=False)
    assert job.state is JobState.SUCCEEDED, job.problem
    found = measured.client.acceptance(job)
    assert len(found.control_repeats) == 1
    assert found.control_repeats[0].receipt != found.control.receipt
    assert found.control_spread is not None
    assert 0 <= found.control_spread < 0.05
    assert found.none is None
    for arm in (found.control, *found.control_repeats, found.variant):
        assert arm.parts_from_none is None
        assert arm.counts is not None
        assert all(prompt.counts is None for prompt in arm.prompts)
        assert sum(group.counts.drafts for group in arm.groups if group.counts) == arm.counts.drafts
        assert sorted(identity for group in arm.groups for identity in group.ids) == sorted(
            prompt.id for prompt in measured.acceptance.control.prompts
        )
    # More in flight is another measurement: nothing of the first is used.
    assert found.control_key != measured.acceptance.control_key
    assert not found.control.reused


def test_a_job_without_a_benchmark_has_no_acceptance(measured: Measured) -> None:
    spec = measured.spec.model_copy(update={"benchmark": None, "format": Format.NVFP4})
    job = measured.client.wait(measured.client.submit(spec))
    assert job.state is JobState.SUCCEEDED, job.problem
    with pytest.raises(ProblemError, match="not-ready"):
        measured.client.acceptance(job)


@pytest.mark.parametrize(
    ("changes", "slug", "reason"),
    [
        ({"prompts": PromptSet(categories=("poetry",))}, "prompts-invalid", Reason.PULL_FAILED),
        ({"target": RepoSource(repo="org/nobody")}, "not-found-or-private", Reason.PULL_FAILED),
        ({"prompts": PromptSet(limit=2, max_tokens=2000)}, "prompts-invalid", Reason.BENCH_FAILED),
    ],
)
def test_what_cannot_be_measured_has_a_name(
    measured: Measured, changes: dict[str, object], slug: str, reason: Reason
) -> None:
    job = measured.again(**changes)
    assert job.state is JobState.FAILED
    assert job.problem is not None
    assert (job.problem.slug, job.reason) == (slug, reason)


def test_an_engine_that_does_not_start_is_kept_on_record(measured: Measured) -> None:
    from draftmill import EngineArgs

    job = measured.again(engine_args=EngineArgs(kv_cache_dtype="no_such_dtype"), no_speculation=False)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.BENCH_FAILED)
    assert job.problem is not None
    assert job.problem.slug == "boot-failed"
    assert any("no_such_dtype" in offender.message for offender in job.problem.offenders)
    newest = next(iter(Archive.of(measured.up.data_dir).summaries()))
    assert newest.state is BootState.FAILED
    folder = Archive.of(measured.up.data_dir).folder(newest.boot).path
    assert b"no_such_dtype" in (folder / "stderr.log").read_bytes() + (folder / "stdout.log").read_bytes()
    assert (folder / MANIFEST).is_file()
