"""Rounding as integer thresholds: exact, and without a division or a logarithm per element."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# searchsorted(bounds, y) with ties at the odd bounds moved up: round to nearest even of 0, .5, 1, 1.5, 2, 3, 4, 6.
_BOUNDS = np.array([0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
# Where the quotient reaches each bound: half of float32's smallest number is what rounds to more than zero.
_NEAR = np.array([2.0**-150, *_BOUNDS[1:]])
_REACHED_AT_TIE = np.array([False, False, True, False, True, False, True, False])
# How far, in units of the last place, a rounded quotient can reach a bound before the exact one does, with room.
_WINDOW = 4


@lru_cache(maxsize=16)
def e2m1_steps(scale_2: float, bits: int) -> NDArray[Any]:
    """[256, 8] magnitudes as bit patterns, int16 (bfloat16) or int32 (float32), by E4M3 block scale code.

    Row s, column k >= 1: the smallest magnitude m whose float32 quotient m / (e4m3(s) * scale_2) rounds to E2M1 code k
    or more. Column 0: the smallest m with a quotient above zero, from which on the sign shows. Division is monotone,
    so that comparing magnitudes with these is the same as dividing and rounding; a magnitude no value has stands for
    "never".
    """
    scales = _e4m3_values() * np.float32(scale_2)
    up = np.uint32(32 - bits)
    top = np.int64(0x7F800000 >> up)
    with np.errstate(over="ignore", under="ignore"):
        near = (_NEAR * scales[:, None].astype(np.float64)).astype(np.float32)
    first = (near.view(np.uint32) >> up).astype(np.int64) - _WINDOW
    candidates = np.clip(first[:, :, None] + np.arange(2 * _WINDOW + 2), 0, top)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        values = (candidates.astype(np.uint32) << up).view(np.float32)
        quotients = values / scales[:, None, None]
    bounds, ties = _BOUNDS[None, :, None], _REACHED_AT_TIE[None, :, None]
    reached = (quotients > bounds) | (ties & (quotients == bounds))
    # 0/0, where a scale has underflowed to zero: the reference's search puts NaN above every bound, without a sign.
    reached |= np.isnan(quotients) & (np.arange(8) > 0)[None, :, None]
    steps = np.take_along_axis(candidates, reached.argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    steps[~reached.any(axis=2)] = top
    out = steps.astype(np.int16 if bits == 16 else np.int32)
    out.flags.writeable = False
    return out


@lru_cache(maxsize=16)
def e2m1_units(scale_2: float) -> NDArray[np.float32]:
    """[256] float32: what an E2M1 code of 1 stands for, by E4M3 block scale code."""
    with np.errstate(under="ignore"):
        units: NDArray[np.float32] = _e4m3_values() * np.float32(scale_2)
    units.flags.writeable = False
    return units


@lru_cache(maxsize=1)
def e8m0_thresholds() -> NDArray[np.int64]:
    """[256] bit patterns of float32: for exponent field e, the smallest that the scale e + 1 belongs to.

    An E8M0 scale is 2^(code - 127), and the code is ceil(log2(x)) + 127 with a float32 logarithm, as ModelOpt takes it.
    Just above 2^k that logarithm still rounds to k, the further up the larger k is. Below 2^-127 the code is 0.
    """
    fields = np.arange(256, dtype=np.int64)
    # The logarithm's half unit in the last place is at most 2^-18, so that 64 mantissas are enough.
    candidates = (fields << 23)[:, None] + np.arange(64)
    candidates[0] = (1 << 22) + np.arange(64)
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithms = np.log2(candidates.astype(np.uint32).view(np.float32).astype(np.float64)).astype(np.float32)
        reached = logarithms > (np.maximum(fields, 0) - 127)[:, None]
    steps = np.take_along_axis(candidates, reached.argmax(axis=1)[:, None], axis=1)[:, 0]
    steps[255] = 255 << 23  # Inf and NaN: no scale is right
    steps.flags.writeable = False
    return steps


def _e4m3_values() -> NDArray[np.float32]:
    """float32 value of each E4M3 code below NaN; codes that are no positive scale read 1."""
    code = np.arange(256)
    exponent, mantissa = code >> 3, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value[(code == 0) | (code >= 0x7F)] = 1.0
    return value.astype(np.float32)
