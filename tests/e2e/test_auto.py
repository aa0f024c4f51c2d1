"""`format: auto` with a target: modules and candidates measured in a real engine, and the best of them served."""

from pathlib import Path

import pytest

from draftmill import Auto, Benchmark, Format, Gate, JobSpec, JobState, PromptSet, RepoSource, Stage
from draftmill.choices import AUTO
from tests.e2e.conftest import World
from tests.e2e.embedded import Up

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(2400)]

PROMPTS = PromptSet(builtin="draftmill-1", limit=10, max_tokens=48)


def test_auto_measures_and_takes_the_best_within_the_size(up: Up, world: World, models: Path) -> None:
    world.hub.add("org/target", models / "target")
    world.hub.add("org/eagle3", models / "eagle3")
    target = RepoSource(repo="org/target")
    spec = JobSpec(
        source=RepoSource(repo="org/eagle3"),
        format=AUTO,
        auto=Auto(formats=(Format.NVFP4, Format.W4A16_NVFP4), max_size=0.5, boots=6),
        benchmark=Benchmark(
            target=target, num_speculative_tokens=3, prompts=PROMPTS, gate=Gate(max_al_drop=0.5), no_speculation=False
        ),
    )
    with up.client() as client:
        job = client.wait(client.submit(spec))
        assert job.state is JobState.SUCCEEDED, job.problem
        choice, acceptance = client.choice(job), client.acceptance(job)
        measured = [one for one in choice.candidates if one.al is not None]
        assert len(measured) == 3
        assert sum(one.change is not None for one in choice.sensitivities) == 3
        assert choice.choice.al == max(one.al or 0.0 for one in measured)
        # The job's own benchmark is of the very bytes that were measured, on the same control.
        assert acceptance.variant.reused
        assert acceptance.control.reused
        assert acceptance.variant.al == choice.choice.al
        assert acceptance.control.al == choice.control_al
        boots = {one.receipt for one in (*measured, *choice.sensitivities) if one.receipt}
        assert len(boots) == 6
        assert all(client.receipt(boot).job == job.id for boot in boots)
        assert [record.name for record in job.attempts[-1].stages][1] is Stage.CHOOSE
        shown = up.run("jobs", "choice", job.id)
        assert "chosen:" in shown.stdout
    assert up.run("receipts", "verify").returncode == 0
