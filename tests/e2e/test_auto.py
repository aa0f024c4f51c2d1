"""`format: auto` with a target: modules and candidates measured in a real engine, and the best of them served."""

from pathlib import Path

import pytest

from draftmill import Auto, Benchmark, Format, Gate, JobSpec, JobState, PromptSet, RepoSource, Stage
from draftmill.choices import AUTO, Candidate, Choice, Comparison
from tests.e2e.conftest import World
from tests.e2e.embedded import Up

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(3600)]

FOUND = Path(__file__).parents[2] / ".draftmill" / "auto"


def _measured(choice: Choice) -> list[Candidate]:
    return [one for one in choice.candidates if one.al is not None]


def _check_intervals(choice: Choice) -> None:
    """Each number inside its interval, and the word for the difference as the interval has it."""
    baseline = choice.baseline
    assert baseline is not None
    for one in (*_measured(choice), baseline.variant):
        assert one.al_interval is not None
        assert one.al_interval.value == one.al
        assert one.al_interval.low <= one.al_interval.value <= one.al_interval.high
    gain, same = baseline.gain, choice.choice == baseline.variant
    assert gain.value == pytest.approx((choice.choice.al or 0) - (baseline.variant.al or 0))
    assert (baseline.says is Comparison.SAME) == same
    assert (baseline.says is Comparison.NOT_SHOWN) == (not same and gain.low <= 0 <= gain.high)
    smaller = choice.choice.variant_bytes <= baseline.variant.variant_bytes
    assert (baseline.says is Comparison.BEATS) == (gain.low > 0 and smaller)


def test_auto_beside_plain_nvfp4_at_no_more_bytes(up: Up, world: World, models: Path) -> None:
    """The shipped pair, every format, all prompts of draftmill-1: what is true is what is printed."""
    world.hub.add("org/target", models / "target")
    world.hub.add("org/eagle3", models / "eagle3")
    source = RepoSource(repo="org/eagle3")
    with up.client() as client:
        plain = client.preflight(source, Format.NVFP4).plan
        assert plain is not None
        spec = JobSpec(
            source=source,
            format=AUTO,
            auto=Auto(max_size=plain.variant_bytes / plain.source_bytes, boots=8),
            benchmark=Benchmark(
                target=RepoSource(repo="org/target"),
                num_speculative_tokens=3,
                gate=Gate(max_al_drop=0.5),
                no_speculation=False,
            ),
        )
        job = client.wait(client.submit(spec))
        assert job.state is JobState.SUCCEEDED, job.problem
        choice, acceptance = client.choice(job), client.acceptance(job)
        shown = up.run("jobs", "choice", job.id)
        print(shown.stdout)
        FOUND.mkdir(parents=True, exist_ok=True)
        (FOUND / "choice.json").write_text(choice.model_dump_json(by_alias=True, indent=1) + "\n")
        (FOUND / "choice.txt").write_text(shown.stdout)
        assert choice.baseline is not None
        assert choice.baseline.variant.format is Format.NVFP4
        assert choice.choice.variant_bytes <= choice.baseline.variant.variant_bytes
        assert choice.choice.al == max(one.al or 0.0 for one in _measured(choice))
        assert {one.format for one in _measured(choice)} >= {Format.NVFP4, Format.W4A16_NVFP4, Format.INT4_G128}
        _check_intervals(choice)
        assert f"{choice.baseline.says}: " in shown.stdout
        # The job's own benchmark is of the very bytes that were measured, on the same control.
        assert acceptance.variant.reused
        assert acceptance.control.reused
        assert acceptance.variant.al == choice.choice.al
        assert acceptance.control.al == choice.control_al
        boots = {one.receipt for one in _measured(choice) if one.receipt}
        assert len(boots) <= 8
        assert all(client.receipt(boot).job == job.id for boot in boots)
        assert [record.name for record in job.attempts[-1].stages][1] is Stage.CHOOSE
    assert up.run("receipts", "verify").returncode == 0


def test_auto_measures_modules_where_there_is_room_to_keep_some(up: Up, world: World, models: Path) -> None:
    world.hub.add("org/target", models / "target")
    world.hub.add("org/eagle3", models / "eagle3")
    spec = JobSpec(
        source=RepoSource(repo="org/eagle3"),
        format=AUTO,
        auto=Auto(formats=(Format.NVFP4, Format.W4A16_NVFP4), max_size=0.5, boots=6),
        benchmark=Benchmark(
            target=RepoSource(repo="org/target"),
            num_speculative_tokens=3,
            prompts=PromptSet(builtin="draftmill-1", limit=10, max_tokens=48),
            gate=Gate(max_al_drop=0.5),
            no_speculation=False,
        ),
    )
    with up.client() as client:
        job = client.wait(client.submit(spec))
        assert job.state is JobState.SUCCEEDED, job.problem
        choice = client.choice(job)
        print(up.run("jobs", "choice", job.id).stdout)
        alone = [one for one in choice.sensitivities if one.change is not None]
        assert len(alone) == 2
        assert len(_measured(choice)) == 4
        assert any(one.kept for one in _measured(choice))
        assert choice.choice.al == max(one.al or 0.0 for one in _measured(choice))
        assert choice.baseline is not None
        assert choice.baseline.variant in choice.candidates
        _check_intervals(choice)
    assert up.run("receipts", "verify").returncode == 0
