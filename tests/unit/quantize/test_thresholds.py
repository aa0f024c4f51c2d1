"""Comparing with thresholds is dividing and rounding: for every bfloat16 and every block scale."""

import numpy as np
import pytest
import torch

from draftmill_worker.quantize.kernels.thresholds import e2m1_steps, e8m0_thresholds

BOUNDS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def divided(magnitudes: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """E2M1 codes of magnitudes / scale and whether a sign would show, as ModelOpt computes them."""
    quotients = magnitudes / torch.tensor(scale, dtype=torch.float32)
    codes = torch.searchsorted(BOUNDS, quotients)
    codes += (quotients.unsqueeze(1) == torch.tensor([0.75, 1.75, 3.5])).any(dim=1)
    return codes, quotients > 0


# Usual; scales that underflow to zero; scales so large that quotients underflow; fp32's own ends.
@pytest.mark.parametrize("scale_2", [2.0**-12, 1e-3 / 3, 3.7e-44, 1.4e-45, 1e-30, 5e20, 1.2e35])
def test_all_bfloat16_magnitudes(scale_2: float) -> None:
    steps = e2m1_steps(scale_2, 16)
    bits = np.arange(0x7F80)
    magnitudes = torch.from_numpy((bits.astype(np.uint32) << 16).view(np.float32))
    second = torch.tensor(scale_2, dtype=torch.float32)
    for code in range(1, 0x7F):
        scale = torch.tensor([code], dtype=torch.uint8).view(torch.float8_e4m3fn).float() * second
        codes, signs = divided(magnitudes, float(scale))
        ours = (bits[:, None] >= steps[code, 1:]).sum(axis=1)
        assert np.array_equal(ours, codes.numpy()), code
        assert np.array_equal(bits >= steps[code, 0], signs.numpy()), code


@pytest.mark.parametrize("scale_2", [2.0**-12, 1e-3 / 3, 2e-44, 1e-30, 1.2e35])
def test_float32_magnitudes_around_every_step(scale_2: float) -> None:
    steps = e2m1_steps(scale_2, 32)
    second = torch.tensor(scale_2, dtype=torch.float32)
    for code in range(1, 0x7F):
        near = (steps[code][:, None].astype(np.int64) + np.arange(-40, 41)).clip(0, 0x7F7FFFFF).reshape(-1)
        magnitudes = torch.from_numpy(near.astype(np.int32).view(np.float32))
        scale = torch.tensor([code], dtype=torch.uint8).view(torch.float8_e4m3fn).float() * second
        codes, signs = divided(magnitudes, float(scale))
        assert np.array_equal((near[:, None] >= steps[code, 1:]).sum(axis=1), codes.numpy()), code
        assert np.array_equal(near >= steps[code, 0], signs.numpy()), code


def test_e8m0_codes_around_every_power_of_two() -> None:
    """ModelOpt's own function, whose float32 logarithm rounds down just above a power of two."""
    from modelopt.torch.quantization.qtensor import MXFP8QTensor

    powers = np.arange(255, dtype=np.int64)[:, None] << 23
    near = np.concatenate([powers + np.arange(-40, 41), (1 << 22) + np.arange(-40, 41)[None]]).clip(0, 0x7F7FFFFF)
    near = np.unique(near)
    quotients = torch.from_numpy(near.astype(np.int32).view(np.float32))
    # Its argument is the block's amax, from which 448 is divided out again: powers of two stay exact.
    exponents = MXFP8QTensor._compute_e8m0_exponent(quotients * 448.0)
    there_and_back = (quotients * 448.0) / 448.0 == quotients
    ours = (near >> 23) + (near >= e8m0_thresholds()[near >> 23])
    assert there_and_back.float().mean() > 0.5
    assert np.array_equal(ours[there_and_back], (exponents + 127).numpy()[there_and_back].astype(np.int64))
