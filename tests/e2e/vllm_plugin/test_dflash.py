"""DFlash's context keys, which the CPU op norms with the wrong layer's weights."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.vllm_plugin.boot import Request
from tests.e2e.vllm_plugin.engines import Boots
from tests.e2e.vllm_plugin.judge import judge, standing
from tests.e2e.vllm_plugin.test_dspark import BF16_MARGIN, rescaled
from tests.fixtures.nets.dflash import DFlash
from tests.fixtures.nets.load import load
from tests.fixtures.prompts import held_out
from tests.fixtures.replay import load_llama

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def request_(models: Path) -> Request:
    return Request(
        target=str(models / "target"),
        prompts=held_out(models / "target", 6),
        tokens=32,
        method="dflash",
        drafter=str(models / "dflash"),
        drafted=3,
        record=True,
    )


def test_every_row_is_what_plain_torch_drafts(boots: Boots, request_: Request, models: Path) -> None:
    """Token for token when the engine computes in fp32 too, and within a rounding of the best token in bf16."""
    target, drafter = load_llama(models / "target"), load(models / "dflash")
    assert isinstance(drafter, DFlash)
    for dtype, margin in (("float32", 0.0), ("bfloat16", BF16_MARGIN)):
        result = boots(replace(request_, dtype=dtype))
        verdicts = [judge(target, drafter, text, row) for text, row in standing(request_.prompts, result)]
        assert len(verdicts) >= result.drafts > 0
        assert max(verdict.margin for verdict in verdicts) <= margin
        assert all(verdict.same for verdict in verdicts) or margin


def test_context_keys_are_normed_by_layer(
    boots: Boots, request_: Request, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    equivalent = rescaled(models / "dflash", tmp_path_factory.mktemp("equivalent") / "dflash")
    result, same = boots(request_), boots(replace(request_, drafter=str(equivalent)))
    assert (same.drafts, same.accepted, same.by_position) == (result.drafts, result.accepted, result.by_position)
    faulty = boots(replace(request_, drafter=str(equivalent)), ("emulation",))
    assert faulty.accepted < result.accepted


def test_the_v2_speculator_counts_the_same(boots: Boots, request_: Request) -> None:
    asked = replace(request_, prompts=request_.prompts[:4], tokens=24, record=False)
    ours, theirs = boots(asked), boots(asked, ("rmsnorm2d",), interpreted=True)
    assert theirs.proposer == "DFlashSpeculator"
    assert ours.drafts > 0
    assert (ours.drafts, ours.accepted, ours.by_position) == (theirs.drafts, theirs.accepted, theirs.by_position)
    assert ours.output_sha256 == theirs.output_sha256
