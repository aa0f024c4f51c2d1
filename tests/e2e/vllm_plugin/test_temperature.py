"""Sampling at a temperature above zero on model runner V1."""

from pathlib import Path

import pytest

from tests.e2e.vllm_plugin.boot import Request
from tests.e2e.vllm_plugin.engines import Boots
from tests.fixtures.prompts import held_out

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
def test_drafts_are_accepted_at_temperature_one(boots: Boots, models: Path, method: str) -> None:
    request = Request(
        target=str(models / "target"),
        prompts=held_out(models / "target", 8),
        tokens=32,
        method="draft_model",
        drafter=str(models / "draft_model"),
        drafted=3,
        temperature=1.0,
        draft_sample_method=method,
    )
    mended = boots(request)
    faulty = boots(request, ())
    assert mended.by_position[0] / mended.drafts > 0.2
    assert faulty.by_position[0] / faulty.drafts < 0.15
