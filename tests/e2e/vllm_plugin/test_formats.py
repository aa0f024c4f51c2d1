"""Every family in every format on this CPU: it runs, it drafts, and the text is that of the target alone."""

from pathlib import Path

import pytest

from draftmill.formats import FORMATS, Format
from tests.e2e.vllm_plugin.boot import Request, Result
from tests.e2e.vllm_plugin.engines import Boots, Variant
from tests.fixtures.prompts import held_out

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(3600)]

DRAFTED = {"draft_model": 3, "eagle3": 3, "dflash": 3, "dspark": 4}
LEAST = {"draft_model": 2.0, "eagle3": 2.0, "dflash": 1.5, "dspark": 2.0}
"""What a shipped bf16 drafter reaches. Its formats keep 85% of the accepted tokens per draft."""
KERNELS = {
    Format.NVFP4: {"EmulationNvFp4LinearKernel"},
    Format.W4A16_NVFP4: {"W4A16NvFp4EmulationKernel"},
    Format.MXFP8: {"EmulationMxfp8LinearKernel"},
    Format.INT4_G128: {"WNA16EmulationKernel"},
    Format.INT8_G128: {"WNA16EmulationKernel"},
}


def _result(boots: Boots, models: Path, drafter: Path | None, family: str) -> Result:
    request = Request(target=str(models / "target"), prompts=held_out(models / "target", 20), tokens=64)
    if drafter is None:
        return boots(request)
    return boots(
        Request(
            target=request.target,
            prompts=request.prompts,
            tokens=request.tokens,
            method=family,
            drafter=str(drafter),
            drafted=DRAFTED[family],
        )
    )


@pytest.mark.parametrize("format", [None, *FORMATS], ids=lambda format: format or "bf16")
@pytest.mark.parametrize("family", DRAFTED)
def test_family_in_format(boots: Boots, models: Path, variant: Variant, family: str, format: Format | None) -> None:
    plain = _result(boots, models, None, family)
    control = _result(boots, models, variant(family, None), family)
    result = _result(boots, models, variant(family, format), family)
    print(f"{family} {format}: acceptance length {result.acceptance_length:.3f} over {result.drafts} drafts")
    assert result.outputs == plain.outputs
    assert control.acceptance_length >= LEAST[family]
    assert result.acceptance_length - 1 >= 0.85 * (control.acceptance_length - 1)
    if format is not None:
        kernels = {kernel for _, kernel in result.methods.values() if kernel is not None}
        assert kernels, "nothing is quantized in the engine"
        assert kernels == KERNELS.get(format, kernels)
