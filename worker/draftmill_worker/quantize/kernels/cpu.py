"""Row operations on the CPU, by numba."""

import numpy as np
from numpy.typing import NDArray

from draftmill_worker.quantize.kernels import loops
from draftmill_worker.quantize.kernels.casts import work_bits
from draftmill_worker.quantize.kernels.loops import BLOCK, Bits
from draftmill_worker.quantize.kernels.rows import GROUP, MX_BLOCK, Rows, SquaredErrors
from draftmill_worker.quantize.kernels.thresholds import e2m1_steps, e2m1_units, e8m0_thresholds


class CpuOps:
    """`RowOps` by numba. Safe to share between threads; the loops run without the GIL."""

    # Fits the last cache beside the packed bytes; smaller chunks cost more in calls than they gain.
    chunk_bytes = 1 << 22

    def amax(self, rows: Rows) -> np.float32:
        bits = work_bits(rows)
        return np.float32(_value(np.array([loops.amax(bits.reshape(-1))], bits.dtype))[0])

    def row_amax(self, rows: Rows) -> NDArray[np.float32]:
        bits = work_bits(rows)
        out = np.empty(bits.shape[0], bits.dtype)
        loops.row_amax(bits, out)
        return _value(out)

    def e4m3(self, rows: Rows, scales: NDArray[np.float32]) -> NDArray[np.uint8]:
        bits = work_bits(rows)
        codes = np.empty(bits.shape, np.uint8)
        loops.e4m3(bits, scales, codes)
        return codes

    def e2m1(self, rows: Rows, scale_2: np.float32) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int]:
        bits = work_bits(rows)
        count, columns = bits.shape
        codes = np.empty((count, columns // 2), np.uint8)
        scales = np.empty((count, columns // BLOCK), np.uint8)
        steps = e2m1_steps(float(scale_2), 8 * bits.itemsize)
        zeros = loops.e2m1(bits, np.float32(np.float32(6.0) * scale_2), steps, codes, scales)
        return codes, scales, int(zeros)

    def e2m1_searched(
        self, rows: Rows, scale_2: np.float32
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int, SquaredErrors]:
        bits = work_bits(rows)
        count, columns = bits.shape
        codes = np.empty((count, columns // 2), np.uint8)
        scales = np.empty((count, columns // BLOCK), np.uint8)
        steps, units = e2m1_steps(float(scale_2), 8 * bits.itemsize), e2m1_units(float(scale_2))
        divisor = np.float32(np.float32(6.0) * scale_2)
        zeros, found, plain, weight = loops.e2m1_searched(bits, divisor, (steps, units), codes, scales)
        return codes, scales, int(zeros), SquaredErrors(found, plain, weight)

    def mxfp8(self, rows: Rows) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int, bool]:
        bits = work_bits(rows)
        count, columns = bits.shape
        codes = np.empty((count, columns), np.uint8)
        scales = np.empty((count, columns // MX_BLOCK), np.uint8)
        zeros, finite = loops.mxfp8(bits, e8m0_thresholds(), codes, scales)
        return codes, scales, int(zeros), bool(finite)

    def group_amax(self, rows: Rows) -> NDArray[np.float32]:
        bits = work_bits(rows)
        out = np.empty((bits.shape[0], bits.shape[1] // GROUP), bits.dtype)
        loops.group_amax(bits, out)
        return _value(out)

    def e4m3_groups(self, rows: Rows, scales: NDArray[np.float32]) -> NDArray[np.uint8]:
        bits = work_bits(rows)
        codes = np.empty(bits.shape, np.uint8)
        loops.e4m3_groups(bits, scales, codes)
        return codes

    def int_groups(self, rows: Rows, scales: NDArray[np.float32], bits: int) -> NDArray[np.uint8]:
        values = work_bits(rows)
        codes = np.empty(values.shape, np.uint8)
        loops.int_groups(values, scales, 1 << (bits - 1), codes)
        if bits == 8:
            return codes
        packed = np.empty((values.shape[0], values.shape[1] // 2), np.uint8)
        loops.pair(codes, packed)
        return packed


def _value(bits: Bits) -> NDArray[np.float32]:
    """float32 values of bfloat16 or float32 bit patterns."""
    if bits.dtype == np.int16:
        return (bits.astype(np.int32) << np.int32(16)).view(np.float32)
    return bits.view(np.float32)
