"""The bound that verify holds every element to: kept by right codes, broken by wrong ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftmill.formats import FORMATS, Format
from draftmill_worker.quantize.dequantize import dequantize
from draftmill_worker.quantize.formats import scheme_for
from tests.unit.quantize.modelopt_reference import modelopt_tensors
from tests.unit.quantize.weights import unit, weights

# What lies above this may be rounded up to what fp32 does not hold.
LARGEST = 3e38
relaxed = settings(deadline=None, max_examples=25)
NVFP4 = (Format.NVFP4, Format.W4A16_NVFP4)


@pytest.mark.parametrize("format", Format)
@given(data=st.data())
@relaxed
def test_modelopts_own_output_keeps_it(format: Format, data: st.DataObject) -> None:
    several = data.draw(st.lists(weights(torch.bfloat16, unit(format)), min_size=3, max_size=6))
    drawn = [weight.clamp(-LARGEST, LARGEST) for weight in several]
    for weight, stored in zip(drawn, modelopt_tensors(drawn, format, fuse=False), strict=True):
        if stored.get("weight_scale_2", torch.tensor(1.0)) > 0:
            error = (dequantize(format, stored) - weight.float()).abs()
            assert (error <= scheme_for(format).error_bound(weight.float())).all()


@pytest.mark.parametrize("format", Format)
@given(data=st.data())
@relaxed
def test_modelopts_fused_output_keeps_it(format: Format, data: st.DataObject) -> None:
    columns = unit(format)
    several = data.draw(st.lists(weights(torch.bfloat16, columns), min_size=2, max_size=3))
    drawn = [weight[:, :columns].clamp(-LARGEST, LARGEST) for weight in several]
    amax = max(float(weight.float().abs().max()) for weight in drawn)
    for weight, stored in zip(drawn, modelopt_tensors(drawn, format, fuse=True), strict=True):
        if stored.get("weight_scale_2", torch.tensor(1.0)) > 0:
            error = (dequantize(format, stored) - weight.float()).abs()
            assert (error <= scheme_for(format).error_bound(weight.float(), amax)).all()


def bell(rows: int = 16, columns: int = 128) -> torch.Tensor:
    return (torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)) / 50).bfloat16()


@pytest.mark.parametrize("format", Format)
def test_a_wrong_scale_breaks_it(format: Format) -> None:
    """The bound comes from the source, so that a scale 1.2 times too large cannot widen it; E8M0 has 2 times."""
    weight = bell()
    [stored] = modelopt_tensors([weight], format, fuse=False)
    name = "weight_scale_2" if format in NVFP4 else "weight_scale"
    larger = stored[name] + 1 if format is Format.MXFP8 else stored[name] * 1.2
    wrong = dict(stored) | {name: larger}
    assert ((dequantize(format, wrong) - weight.float()).abs() > scheme_for(format).error_bound(weight.float())).any()


@pytest.mark.parametrize("format", Format)
def test_neighbouring_codes_break_it(format: Format) -> None:
    """Every code moved one step up: most elements leave the bound."""
    weight = bell()
    [stored] = modelopt_tensors([weight], format, fuse=False)
    suffix = FORMATS[format].weight_suffix
    codes = stored[suffix].view(torch.uint8)
    pairs = FORMATS[format].bits == 4
    moved = torch.where(codes & 0x77 < (0x66 if pairs else 0x70), codes + (0x11 if pairs else 1), codes)
    wrong = dict(stored) | {suffix: moved.view(stored[suffix].dtype)}
    broken = (dequantize(format, wrong) - weight.float()).abs() > scheme_for(format).error_bound(weight.float())
    assert broken.float().mean() > 0.2


@pytest.mark.parametrize("format", NVFP4)
def test_swapped_nibbles_break_it(format: Format) -> None:
    weight = bell()
    [stored] = modelopt_tensors([weight], format, fuse=False)
    codes = stored["weight"]
    wrong = dict(stored) | {"weight": (codes >> 4) | (codes << 4)}
    broken = (dequantize(format, wrong) - weight.float()).abs() > scheme_for(format).error_bound(weight.float())
    assert broken.float().mean() > 0.2


def test_dequantization_agrees_with_modelopts() -> None:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    weight = bell()
    [stored] = modelopt_tensors([weight], Format.NVFP4, fuse=False)
    theirs = NVFP4QTensor(weight.shape, torch.float32, stored["weight"]).dequantize(
        torch.float32, scale=stored["weight_scale"], double_scale=stored["weight_scale_2"], block_sizes={-1: 16}
    )
    assert torch.equal(dequantize(Format.NVFP4, stored), theirs)


def test_e8m0_dequantization_agrees_with_modelopts() -> None:
    from modelopt.torch.quantization.qtensor import MXFP8QTensor

    weight = bell()
    [stored] = modelopt_tensors([weight], Format.MXFP8, fuse=False)
    tensor = MXFP8QTensor(weight.shape, torch.float32, stored["weight"])
    theirs = tensor.dequantize(torch.float32, scale=stored["weight_scale"])
    assert torch.equal(dequantize(Format.MXFP8, stored), theirs)
    assert (
        dequantize(Format.MXFP8, stored | {"weight_scale": torch.full_like(stored["weight_scale"], 255)}).isnan().all()
    )
