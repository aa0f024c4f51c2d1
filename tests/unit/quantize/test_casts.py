"""Casts round as torch rounds, for every 16-bit value and for any 32-bit one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from draftmill_worker.quantize.kernels.casts import cast, finite

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
EVERY_16_BITS = np.arange(1 << 16, dtype=np.uint16)


def assert_as_torch(stored: np.ndarray, dtype: str, target: str) -> None:
    raw = np.ascontiguousarray(stored)
    source = torch.from_numpy(raw.view(np.int16 if dtype == "BF16" else raw.dtype).copy()).view(TORCH[dtype])
    theirs = source.to(TORCH[target])
    ours = torch.from_numpy(np.array(cast(raw, dtype, target)).view(np.int16)).view(TORCH[target])
    # NaN is NaN: torch's own payloads differ between its scalar and its vector code.
    both = ours.isnan() & theirs.isnan()
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.view(torch.int16)[~both], theirs.view(torch.int16)[~both])


@pytest.mark.parametrize(("dtype", "target"), [("BF16", "F16"), ("F16", "BF16")])
def test_every_16_bit_value(dtype: str, target: str) -> None:
    assert_as_torch(EVERY_16_BITS.view(np.int16 if dtype == "BF16" else np.float16), dtype, target)


@pytest.mark.parametrize("target", ["BF16", "F16"])
@given(bits=hnp.arrays(np.uint32, st.integers(1, 64)))
@settings(deadline=None, max_examples=300)
def test_any_float32(target: str, bits: np.ndarray) -> None:
    assert_as_torch(bits.view(np.float32), "F32", target)


@given(upper=hnp.arrays(np.uint16, 64), lower=st.sampled_from((0x7FFF, 0x8000, 0x8001)))
@settings(deadline=None, max_examples=100)
def test_float32_about_the_ties_of_bfloat16(upper: np.ndarray, lower: int) -> None:
    assert_as_torch((upper.astype(np.uint32) << 16 | lower).view(np.float32), "F32", "BF16")


@pytest.mark.parametrize("target", ["BF16", "F16"])
@given(values=hnp.arrays(np.float64, 32))
@settings(deadline=None, max_examples=100)
def test_any_float64(target: str, values: np.ndarray) -> None:
    assert_as_torch(values, "F64", target)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_finite(dtype: str) -> None:
    for stored in EVERY_16_BITS[::7].view(np.int16 if dtype == "BF16" else np.float16).reshape(-1, 1):
        value = torch.from_numpy(stored.view(np.int16).copy()).view(TORCH[dtype])
        assert finite(stored, dtype) == bool(value.isfinite())
