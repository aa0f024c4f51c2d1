"""DSpark on model runner V1, proved against plain torch and against vLLM's own speculator on V2."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from draftmill_worker.bench.vllm_plugin.targets import PluginError
from tests.e2e.vllm_plugin.boot import Request
from tests.e2e.vllm_plugin.engines import Boots
from tests.e2e.vllm_plugin.judge import judge, standing
from tests.fixtures.nets.dflash import DFlash
from tests.fixtures.nets.load import load
from tests.fixtures.prompts import held_out
from tests.fixtures.replay import load_llama

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

BF16_MARGIN = 0.125
"""A token whose fp32 logit is this near to the highest may be drafted by bf16 arithmetic."""


@pytest.fixture(scope="module")
def request_(models: Path) -> Request:
    return Request(
        target=str(models / "target"),
        prompts=held_out(models / "target", 6),
        tokens=32,
        method="dspark",
        drafter=str(models / "dspark"),
        drafted=4,
        record=True,
    )


@pytest.fixture(scope="module")
def small(request_: Request) -> Request:
    """Small enough for an interpreter."""
    return replace(request_, prompts=request_.prompts[:4], tokens=24, record=False)


@pytest.fixture(scope="module")
def equivalent(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same function from other weights: the last layer's keys are four times as long, its queries a quarter."""
    return rescaled(models / "dspark", tmp_path_factory.mktemp("equivalent") / "dspark")


def rescaled(source: Path, out: Path) -> Path:
    shutil.copytree(source, out)
    tensors = load_file(out / "model.safetensors")
    layer = max(name for name in tensors if name.endswith("self_attn.k_norm.weight")).removesuffix("k_norm.weight")
    tensors[f"{layer}k_norm.weight"] *= 4
    tensors[f"{layer}q_norm.weight"] /= 4
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_the_output_is_that_of_no_speculation(boots: Boots, request_: Request) -> None:
    speculated = boots(request_)
    plain = boots(replace(request_, method=None, drafter=None, drafted=0, record=False))
    assert speculated.outputs == plain.outputs
    assert speculated.proposer == "DSparkProposer"
    assert speculated.runner.endswith(".DSparkCPUModelRunner")
    assert {"dspark.unsupported_features", "dspark.model_runner"} <= set(speculated.applied)
    assert plain.applied == speculated.applied


def test_every_row_is_what_plain_torch_drafts(boots: Boots, request_: Request, models: Path) -> None:
    """Token for token when the engine computes in fp32 too, and within a rounding of the best token in bf16."""
    target, drafter = load_llama(models / "target"), load(models / "dspark")
    assert isinstance(drafter, DFlash)
    for dtype, margin in (("float32", 0.0), ("bfloat16", BF16_MARGIN)):
        result = boots(replace(request_, dtype=dtype))
        verdicts = [judge(target, drafter, text, row) for text, row in standing(request_.prompts, result)]
        assert len(verdicts) >= result.drafts > 0
        assert max(verdict.margin for verdict in verdicts) <= margin
        assert all(verdict.same for verdict in verdicts) or margin


def test_the_judge_sees_wrong_weights(boots: Boots, request_: Request, models: Path) -> None:
    target, drafter = load_llama(models / "target"), load(models / "dspark")
    assert isinstance(drafter, DFlash)
    drafter.get_parameter("layers.0.mlp.down_proj.weight").mul_(-1)
    rows = standing(request_.prompts, boots(request_))[:10]
    assert max(judge(target, drafter, text, row).margin for text, row in rows) > BF16_MARGIN


def test_context_keys_are_normed_by_layer(boots: Boots, request_: Request, equivalent: Path) -> None:
    result, same = boots(request_), boots(replace(request_, drafter=str(equivalent)))
    assert (same.drafts, same.accepted, same.by_position) == (result.drafts, result.accepted, result.by_position)
    assert same.output_sha256 == result.output_sha256


@pytest.mark.slow
def test_without_the_mended_norm_they_are_not(boots: Boots, request_: Request, equivalent: Path) -> None:
    faulty = boots(replace(request_, drafter=str(equivalent)), ("dspark",))
    assert faulty.accepted < boots(request_).accepted


@pytest.mark.slow
@pytest.mark.parametrize("transformed", [False, True])
def test_counters_are_those_of_the_v2_speculator(
    boots: Boots, small: Request, equivalent: Path, transformed: bool
) -> None:
    asked = replace(small, drafter=str(equivalent)) if transformed else small
    ours, theirs = boots(asked), boots(asked, ("rmsnorm2d",), interpreted=True)
    assert theirs.proposer == "DSparkSpeculator"
    assert theirs.runner == "vllm.v1.worker.cpu.model_runner.CPUModelRunner"
    assert ours.drafts > 0
    assert (ours.drafts, ours.accepted, ours.by_position) == (theirs.drafts, theirs.accepted, theirs.by_position)
    assert ours.output_sha256 == theirs.output_sha256


@pytest.mark.parametrize(
    ("config", "method", "named"),
    [
        ({"dspark_draft_topk": 8}, "greedy", "top k"),
        ({"sample_from_anchor": False}, "greedy", "anchor is not sampled"),
        ({}, "probabilistic", "probabilistic drafting"),
        ({"architectures": ["Gemma4DSparkModel"]}, "greedy", "other than Qwen3DSparkModel"),
    ],
)
def test_what_is_not_covered_is_refused_by_name(config: dict[str, Any], method: str, named: str) -> None:
    pytest.importorskip("vllm")
    from draftmill_worker.bench.vllm_plugin.dspark_proposer import DSparkProposer

    hf_config = SimpleNamespace(**{"architectures": ["Qwen3DSparkModel"], **config})
    speculative = SimpleNamespace(
        draft_model_config=SimpleNamespace(hf_config=hf_config), draft_sample_method=method, method="dspark"
    )
    with pytest.raises(PluginError, match=f"not covered on model runner V1: .*{named}"):
        DSparkProposer(SimpleNamespace(speculative_config=speculative), None)  # type: ignore[arg-type]
