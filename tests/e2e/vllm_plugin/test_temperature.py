"""Sampling at a temperature above zero on model runner V1."""

from pathlib import Path

import pytest
import torch

from tests.e2e.vllm_plugin.boot import Request, Result
from tests.e2e.vllm_plugin.engines import Boots
from tests.fixtures.prompts import held_out
from tests.fixtures.replay import load_llama

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]


@torch.inference_mode()
def _expected(models: Path, request: Request, result: Result) -> float:
    """How often the target takes a first draft token, over every place of the text, from both models' probabilities."""
    target, drafter = load_llama(models / "target"), load_llama(models / "draft_model")
    taken = []
    for prompt, output in zip(request.prompts, result.outputs, strict=True):
        ids = torch.tensor([[*prompt, *output]])
        p, q = (model.head(model.states(ids)[-1])[0].softmax(-1) for model in (target, drafter))
        each = p.gather(1, q.argmax(-1, keepdim=True))[:, 0]
        if request.draft_sample_method == "probabilistic":
            each = torch.minimum(p, q).sum(-1)
        taken.append(each[len(prompt) - 1 : -1])
    return float(torch.cat(taken).mean())


@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
def test_drafts_are_accepted_at_temperature_one(boots: Boots, models: Path, method: str) -> None:
    """Drafts follow rejections and so stand at harder places than the average: half the expectation is enough."""
    request = Request(
        target=str(models / "target"),
        prompts=held_out(models / "target", 8),
        tokens=48,
        method="draft_model",
        drafter=str(models / "draft_model"),
        drafted=3,
        temperature=1.0,
        draft_sample_method=method,
    )
    mended, faulty = boots(request), boots(request, ())
    expected = _expected(models, request, mended)
    assert mended.by_position[0] / mended.drafts > 0.5 * expected
    assert faulty.by_position[0] / faulty.drafts < 0.5 * expected
