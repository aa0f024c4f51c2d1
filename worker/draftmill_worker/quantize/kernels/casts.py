"""Casts of stored values, rounding as torch does, to bit patterns the loops take."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftmill_worker.quantize.kernels import loops
from draftmill_worker.quantize.kernels.loops import Bits
from draftmill_worker.quantize.kernels.rows import Rows


def work_bits(rows: Rows) -> Bits:
    """[rows, columns]: bfloat16 bits where the cast is BF16, else the cast values as float32 bits."""
    if rows.cast == "BF16":
        return _frozen(to_bfloat16(rows.stored, rows.dtype))
    values = to_float32(rows.stored, rows.dtype)
    if rows.cast == "F16":
        values = to_float16(values).astype(np.float32)
    return _frozen(values.view(np.int32))


def cast(stored: NDArray[Any], dtype: str, target: str) -> NDArray[Any]:
    """Stored values in the dtype `target`, BF16 or F16, as that dtype is stored."""
    return to_bfloat16(stored, dtype) if target == "BF16" else to_float16(to_float32(stored, dtype))


def finite(stored: NDArray[Any], dtype: str) -> bool:
    """Whether all stored BF16 or F16 values are finite: their magnitude's bits stay below Inf's."""
    largest = int(loops.amax(_frozen(stored.reshape(-1).view(np.int16))))
    return largest < (0x7F80 if dtype == "BF16" else 0x7C00)


def to_bfloat16(stored: NDArray[Any], dtype: str) -> NDArray[np.int16]:
    if dtype == "BF16":
        return stored
    values = to_float32(stored, dtype)
    out = np.empty(values.shape, np.int16)
    loops.to_bfloat16(_frozen(values.view(np.int32).reshape(-1)), out.reshape(-1))
    return out


def to_float16(values: NDArray[np.float32]) -> NDArray[np.float16]:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return values.astype(np.float16)


def to_float32(stored: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    if dtype == "BF16":
        return (stored.astype(np.int32) << np.int32(16)).view(np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return stored.astype(np.float32, copy=False)


def _frozen(bits: Bits) -> Bits:
    """Read-only, as a mapped file is: one numba specialization per loop instead of two."""
    view = bits.view()
    view.flags.writeable = False
    return view
