"""Reference mode equals ModelOpt 0.47, byte for byte, wherever ModelOpt gives something that can be served."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftmill.formats import Format
from draftmill_worker.quantize.kernels import row_ops
from tests.unit.quantize.modelopt_reference import modelopt_tensors
from tests.unit.quantize.weights import CAST, packed, same_bytes, unit, weights

WIDE = (Format.MXFP8, Format.FP8_PB_WO, Format.INT4_G128, Format.INT8_G128)
CASES = [
    pytest.param(format, cast, marks=[pytest.mark.slow] if format in WIDE and cast != "BF16" else [])
    for format in Format
    for cast in CAST
]
SOURCES = [
    pytest.param(format, source, marks=[pytest.mark.slow] if format in WIDE and source is not torch.float32 else [])
    for format in Format
    for source in (torch.float16, torch.float32, torch.float64)
]
DEVICES = ("cpu", "torch")
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def assert_parity(sources: list[torch.Tensor], format: Format, cast: str) -> None:
    """Each source, cast to what ModelOpt is given, packed alone."""
    given_ = [source.to(CAST[cast]) for source in sources]
    for index, theirs in enumerate(modelopt_tensors(given_, format, fuse=False)):
        if theirs.get("weight_scale_2", torch.tensor(1.0)) == 0:
            continue  # NaN block scales; see test_edges
        for device in DEVICES:
            ours = packed(sources[index], format, cast, row_ops(device))
            different = [name for name in theirs if not same_bytes(ours[name], theirs[name])]
            assert ours.keys() == theirs.keys()
            assert not different, (device, sources[index], {name: (ours[name], theirs[name]) for name in different})


@pytest.mark.parametrize(("format", "cast"), CASES)
@given(data=st.data())
@settings(relaxed, max_examples=12)
def test_any_weight(format: Format, cast: str, data: st.DataObject) -> None:
    assert_parity(data.draw(st.lists(weights(CAST[cast], unit(format)), min_size=4, max_size=8)), format, cast)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("format", Format)
@given(data=st.data())
@settings(relaxed, max_examples=250)
def test_two_thousand_weights(format: Format, data: st.DataObject) -> None:
    """At least eight tensors in each of 250 examples."""
    sources = data.draw(st.lists(weights(torch.bfloat16, unit(format)), min_size=8, max_size=10))
    assert_parity(sources, format, "BF16")


@pytest.mark.parametrize(("format", "source"), SOURCES)
@given(data=st.data())
@settings(relaxed, max_examples=8)
def test_the_cast_comes_before_the_amax(format: Format, source: torch.dtype, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(weights(torch.float16, unit(format)), min_size=4, max_size=6))
    # Bits below bfloat16's, so that the cast has to round.
    sources = [weight.to(source) if source is torch.float16 else weight.to(source) * (1 + 2.0**-9) for weight in drawn]
    assert_parity(sources, format, "BF16")


@pytest.mark.parametrize("format", Format)
@given(data=st.data())
@settings(relaxed, max_examples=12)
def test_a_fused_set_is_what_modelopt_makes_of_one(format: Format, data: st.DataObject) -> None:
    """ModelOpt's own fusion gives q, k and v the largest amax; so does ours."""
    columns, times = unit(format), data.draw(st.sampled_from((1, 3)))
    drawn = data.draw(st.lists(weights(torch.bfloat16, columns), min_size=3, max_size=3))
    siblings = [weight[:, :columns].repeat(1, times) for weight in drawn]
    largest = max(float(weight.float().abs().max()) for weight in siblings)
    theirs = modelopt_tensors(siblings, format, fuse=True)
    if theirs[0].get("weight_scale_2", torch.tensor(1.0)) == 0:
        return
    for device in DEVICES:
        for weight, expected in zip(siblings, theirs, strict=True):
            ours = packed(weight, format, "BF16", row_ops(device), amax=largest)
            assert all(same_bytes(ours[name], expected[name]) for name in expected)


@pytest.mark.parametrize("format", [format for format in Format if format is not Format.FP8_PC_PT])
def test_one_row(format: Format) -> None:
    columns = unit(format)
    assert_parity([torch.linspace(-3, 3, columns).reshape(1, columns).bfloat16()], format, "BF16")


def test_one_element() -> None:
    assert_parity([torch.tensor([[0.3]]).bfloat16()], Format.FP8, "BF16")


def test_a_wide_weight_of_a_real_size() -> None:
    weight = (torch.randn(256, 4096, generator=torch.Generator().manual_seed(0)) / 64).bfloat16()
    for format in Format:
        assert_parity([weight], format, "BF16")
