"""The loops over elements, compiled by numba. One file: numba's cache does not notice changes in another.

Weights come as bit patterns: int16 for bfloat16, int32 for float32. A bfloat16 is the upper half of a float32, so one
source serves both: `_up(x)` is the shift from x's bits to float32's, 16 or 0, known when numba compiles. Magnitudes
order like their bit patterns, which makes amax, finiteness and thresholds integer comparisons. The patterns are signed
because LLVM vectorizes signed comparisons three times better here.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftmill_worker.quantize.kernels.jit import jit

# int16 or int32; numba compiles one version for each.
Bits = NDArray[Any]
SearchTables = tuple[Bits, NDArray[np.float32]]
BLOCK = 16
GROUP = 128


@jit
def _up(x: Bits) -> int:
    return 32 - 8 * x.itemsize


@jit
def _magnitude_mask(x: Bits) -> int:
    return (1 << (8 * x.itemsize - 1)) - 1


@jit
def _e4m3(magnitude: np.float32) -> np.uint32:
    """E4M3 code of a float32 >= 0 to nearest even, as torch rounds (c10/util/Float8_e4m3fn.h).

    Below 2^-6, adding 2^14 leaves the subnormal's bits at the end of the mantissa; above, the carry of the rounding
    addend does the rest. The caller keeps magnitudes under 480, where E4M3 has no Inf to give.
    """
    bits = np.float32(magnitude).view(np.uint32)
    subnormal = np.float32(magnitude + np.float32(16384.0)).view(np.uint32) - np.uint32(141 << 23)
    normal = np.uint32(bits + np.uint32(0xC407FFFF) + ((bits >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)
    return np.uint32(subnormal if bits < np.uint32(121 << 23) else normal)


@jit
def amax(x: Bits) -> Any:
    """Largest magnitude of a flat array, as a bit pattern; Inf and NaN are the largest of all."""
    bits = x.dtype.type
    mask = bits(_magnitude_mask(x))
    largest = bits(0)
    for i in range(x.size):
        largest = max(largest, bits(x[i] & mask))
    return largest


@jit
def row_amax(x: Bits, out: Bits) -> None:
    """Largest magnitude of each row, as bit patterns."""
    for row in range(x.shape[0]):
        out[row] = amax(x[row])


@jit
def e4m3(x: Bits, scales: NDArray[np.float32], codes: NDArray[np.uint8]) -> None:
    """codes = E4M3(x / scale), float32 arithmetic; one scale for all rows or one per row."""
    mask = np.uint32(_magnitude_mask(x))
    up = np.uint32(_up(x))
    for row in range(x.shape[0]):
        scale = scales[row if scales.size > 1 else 0]
        for i in range(x.shape[1]):
            value = x[row, i]
            magnitude = np.uint32((np.uint32(value) & mask) << up).view(np.float32)
            sign = np.uint32(0x80) if value < 0 else np.uint32(0)
            codes[row, i] = np.uint8(_e4m3(np.float32(magnitude / scale)) | sign)


@jit
def _halve(source: Bits, target: Bits, count: int) -> None:
    for i in range(count):
        target[i] = max(source[2 * i], source[2 * i + 1])


@jit
def _block_amax(line: Bits, out: Bits, spare: Bits, mask: int) -> None:
    """out[b] = largest magnitude of block b. By pairwise maxima over the row: a loop per block does not vectorize."""
    for i in range(line.size // 2):
        out[i] = max(line[2 * i] & mask, line[2 * i + 1] & mask)
    _halve(out, spare, line.size // 4)
    _halve(spare, out, line.size // 8)
    _halve(out, spare, line.size // 16)
    for i in range(line.size // BLOCK):
        out[i] = spare[i]


@jit
def group_amax(x: Bits, out: Bits) -> None:
    """Largest magnitude of each 128 columns of a row, as bit patterns."""
    for row in range(x.shape[0]):
        for group in range(x.shape[1] // GROUP):
            out[row, group] = amax(x[row, group * GROUP : group * GROUP + GROUP])


@jit
def e4m3_groups(x: Bits, scales: NDArray[np.float32], codes: NDArray[np.uint8]) -> None:
    """codes = E4M3(x / scale), float32 arithmetic; one scale per 128 columns of a row."""
    mask = np.uint32(_magnitude_mask(x))
    up = np.uint32(_up(x))
    for row in range(x.shape[0]):
        line = x[row]
        for group in range(line.size // GROUP):
            scale = scales[row, group]
            for i in range(group * GROUP, group * GROUP + GROUP):
                value = line[i]
                magnitude = np.uint32((np.uint32(value) & mask) << up).view(np.float32)
                sign = np.uint32(0x80) if value < 0 else np.uint32(0)
                codes[row, i] = np.uint8(_e4m3(np.float32(magnitude / scale)) | sign)


@jit
def int_groups(x: Bits, scales: NDArray[np.float32], half: int, codes: NDArray[np.uint8]) -> None:
    """codes = round(x / scale) + half, to nearest even and within [0, 2 * half); one scale per 128 columns of a row.

    Adding 1.5 * 2^23 leaves a float32's integer at the end of its mantissa, rounded as IEEE rounds.
    """
    up = np.int32(_up(x))
    low, high = np.float32(-half), np.float32(half - 1)
    offset = np.int32(0x4B400000 - half)
    for row in range(x.shape[0]):
        line = x[row]
        for group in range(line.size // GROUP):
            scale = scales[row, group]
            for i in range(group * GROUP, group * GROUP + GROUP):
                quotient = np.float32(np.int32(np.int32(line[i]) << up).view(np.float32) / scale)
                bounded = min(max(quotient, low), high)
                code = np.float32(bounded + np.float32(12582912.0)).view(np.int32) - offset
                codes[row, i] = np.uint8(code)


@jit
def pair(codes: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Two codes of four bits a byte, the even column in the low nibble."""
    for row in range(codes.shape[0]):
        for i in range(out.shape[1]):
            out[row, i] = np.uint8(codes[row, 2 * i] | (codes[row, 2 * i + 1] << 4))


@jit
def mxfp8(
    x: Bits, thresholds: NDArray[np.int64], codes: NDArray[np.uint8], scales: NDArray[np.uint8]
) -> tuple[int, bool]:
    """E4M3 codes and E8M0 scales of rows of blocks of 32; returns the number of all-zero blocks, and if all is finite.

    `thresholds[e]` belongs to a quotient amax / 448 with exponent field e: the bit pattern from which on its scale is
    e + 1. Scales are powers of two, so that multiplying by their reciprocal is exact but for subnormals.
    """
    columns = x.shape[1]
    bits = x.dtype.type
    mask = bits(_magnitude_mask(x))
    wide = np.empty(columns, x.dtype)
    spare = np.empty(columns // 4, x.dtype)
    up, plain = np.uint32(_up(x)), np.uint32(_magnitude_mask(x))
    zeros, finite = 0, True
    for row in range(x.shape[0]):
        line = x[row]
        _block_amax(line, wide, spare, mask)
        for block in range(columns // 32):
            top = max(wide[2 * block], wide[2 * block + 1])
            zeros += top == 0
            amax = np.uint32(np.uint32(top) << up).view(np.float32)
            finite = finite and np.isfinite(amax)
            quotient = np.int64(np.float32(amax / np.float32(448.0)).view(np.uint32))
            scale = min((quotient >> 23) + (quotient >= thresholds[quotient >> 23]), 254)
            scales[row, block] = np.uint8(scale)
            factor = np.uint32((254 - scale) << 23).view(np.float32)
            for i in range(block * 32, block * 32 + 32):
                value = line[i]
                magnitude = np.uint32((np.uint32(value) & plain) << up).view(np.float32)
                sign = np.uint32(0x80) if value < 0 else np.uint32(0)
                # Within a rounding of 448: nothing reaches the 464 from which on a code would be NaN's.
                codes[row, i] = np.uint8(_e4m3(np.float32(magnitude * factor)) | sign)
    return zeros, finite


@jit
def _block_scales(tops: Bits, divisor: np.float32, codes: NDArray[np.uint8]) -> int:
    """E4M3 codes of block amax / divisor; returns how many blocks are all zero.

    A quotient of zero becomes 1 and the rest is clamped to [2^-9, 448], as ModelOpt does before its cast.
    """
    up = np.uint32(_up(tops))
    zeros = 0
    for i in range(codes.size):
        zeros += tops[i] == 0
        scale = np.float32(np.uint32(np.uint32(tops[i]) << up).view(np.float32) / divisor)
        scale = np.float32(1.0) if scale == 0 else min(max(scale, np.float32(2.0**-9)), np.float32(448.0))
        codes[i] = np.uint8(_e4m3(scale))
    return zeros


@jit
def _e2m1_codes(line: Bits, steps: Bits, scales: NDArray[np.uint8], codes: Bits) -> None:
    """Codes of a row: how many steps of its block's scale a magnitude has reached, and the sign above them."""
    bits = line.dtype.type
    mask = bits(_magnitude_mask(line))
    # Bounded by the row's own size: bounded by scales.size, LLVM leaves the inner loop scalar.
    for block in range(line.size // BLOCK):
        s = scales[block]
        t0, t1, t2, t3 = steps[s, 0], steps[s, 1], steps[s, 2], steps[s, 3]
        t4, t5, t6, t7 = steps[s, 4], steps[s, 5], steps[s, 6], steps[s, 7]
        for i in range(block * BLOCK, block * BLOCK + BLOCK):
            value = line[i]
            m = bits(value & mask)
            code = bits(m >= t1) + bits(m >= t2) + bits(m >= t3) + bits(m >= t4)
            code += bits(m >= t5) + bits(m >= t6) + bits(m >= t7)
            code += bits(8) * bits((value < 0) & (m >= t0))
            codes[i] = bits(code)


@jit
def e2m1(x: Bits, divisor: np.float32, steps: Bits, codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> int:
    """Packs rows of blocks of 16 columns; returns how many blocks are all zero.

    `divisor` is 6 * scale_2. `steps[s]` belongs to block scale code s: eight magnitudes, the first for the sign to
    show, the others for codes 1 to 7. `codes` [rows, columns/2] has the even column in the low nibble, `scales`
    [rows, columns/16] holds E4M3 codes.
    """
    columns = x.shape[1]
    bits = x.dtype.type
    mask = bits(_magnitude_mask(x))
    wide = np.empty(columns, x.dtype)
    spare = np.empty(columns // 4, x.dtype)
    zeros = 0
    for row in range(x.shape[0]):
        _block_amax(x[row], wide, spare, mask)
        zeros += _block_scales(wide, divisor, scales[row])
        _e2m1_codes(x[row], steps, scales[row], wide)
        for i in range(columns // 2):
            codes[row, i] = np.uint8(wide[2 * i] | (wide[2 * i + 1] << 4))
    return zeros


@jit
def _block_square(block: Bits, steps: Bits, unit: np.float32, squares: NDArray[np.float64]) -> float:
    """Squared error of 16 magnitudes with the codes that `steps` gives them, each code worth itself times `unit`.

    What is stored is a float32 product; all else is float64, in which weights of any size have a square, and is summed
    by halves: every implementation has to give the same last bit.
    """
    bits = block.dtype.type
    mask = bits(_magnitude_mask(block))
    up = np.uint32(_up(block))
    t1, t2, t3, t4, t5, t6, t7 = steps[1], steps[2], steps[3], steps[4], steps[5], steps[6], steps[7]
    for i in range(BLOCK):
        m = bits(block[i] & mask)
        halves = bits(m >= t1) + bits(m >= t2) + bits(m >= t3) + bits(m >= t4)
        halves += 2 * (bits(m >= t5) + bits(m >= t6)) + 4 * bits(m >= t7)
        stored = np.float32(np.float32(np.float32(0.5) * np.float32(halves)) * unit)
        error = np.float64(np.uint32(np.uint32(m) << up).view(np.float32)) - np.float64(stored)
        squares[i] = error * error
    half = BLOCK // 2
    while half > 0:
        for i in range(half):
            squares[i] += squares[i + half]
        half //= 2
    total: float = squares[0]
    return total


@jit
def _least_square(
    block: Bits, top: Any, plain: int, tables: SearchTables, squares: NDArray[np.float64]
) -> tuple[int, float, float]:
    """(block scale code of the least squared error, that error, the error of code `plain`); `plain` wins ties.

    Upwards to 7 codes, short of twice the scale: of the values that a scale has and the block reaches, half of that
    scale has all. Downwards while the largest magnitude, which saturates, does not alone err by the least so far.
    """
    steps, units = tables
    first = _block_square(block, steps[plain], units[plain], squares)
    least, code = first, plain
    if first == 0:
        return code, least, first
    for other in range(plain + 1, min(plain + 8, 127)):
        square = _block_square(block, steps[other], units[other], squares)
        if square < least:
            least, code = square, other
    largest = np.float64(np.uint32(np.uint32(top) << np.uint32(_up(block))).view(np.float32))
    for other in range(plain - 1, 0, -1):
        cut = largest - np.float64(np.float32(np.float32(6.0) * units[other]))
        if cut > 0 and cut * cut >= least:
            break
        square = _block_square(block, steps[other], units[other], squares)
        if square < least:
            least, code = square, other
    return code, least, first


@jit
def e2m1_searched(
    x: Bits, divisor: np.float32, tables: SearchTables, codes: NDArray[np.uint8], scales: NDArray[np.uint8]
) -> tuple[int, float, float, float]:
    """`e2m1` with each block's scale by least squared error; also returns the sums of squared errors with these scales
    and with the plain ones, and of squared weights. `tables` is (steps, units), units[s] block scale s times scale_2.
    """
    columns = x.shape[1]
    bits = x.dtype.type
    mask = bits(_magnitude_mask(x))
    wide = np.empty(columns, x.dtype)
    spare = np.empty(columns // 4, x.dtype)
    squares = np.empty(BLOCK, np.float64)
    up = np.uint32(_up(x))
    zeros, found, plain, weight = 0, 0.0, 0.0, 0.0
    for row in range(x.shape[0]):
        line = x[row]
        _block_amax(line, wide, spare, mask)
        zeros += _block_scales(wide, divisor, scales[row])
        for block in range(columns // BLOCK):
            values = line[block * BLOCK : block * BLOCK + BLOCK]
            code, least, first = _least_square(values, wide[block], int(scales[row, block]), tables, squares)
            scales[row, block] = np.uint8(code)
            found += least
            plain += first
        for i in range(columns):
            value = np.float64(np.uint32(np.uint32(line[i] & mask) << up).view(np.float32))
            weight += value * value
        _e2m1_codes(line, tables[0], scales[row], wide)
        for i in range(columns // 2):
            codes[row, i] = np.uint8(wide[2 * i] | (wide[2 * i + 1] << 4))
    return zeros, found, plain, weight


@jit
def to_bfloat16(x: NDArray[np.int32], out: NDArray[np.int16]) -> None:
    """float32 bits to bfloat16 bits, to nearest even; NaN becomes the quiet NaN 0x7FC0 (c10/util/BFloat16.h)."""
    for i in range(x.size):
        bits = np.uint32(x[i])
        rounded = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[i] = np.int16(np.uint32(0x7FC0) if nan else rounded)
