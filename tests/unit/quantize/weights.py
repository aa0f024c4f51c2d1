"""Random weights, and our packing of a single one."""

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from draftmill.formats import FORMATS, Format
from draftmill_worker.quantize.formats import scheme_for
from draftmill_worker.quantize.kernels import RowOps, Rows
from draftmill_worker.quantize.kernels.rows import TINY

CAST = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
STORED = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}

VIEWED = {"F8_E4M3": torch.float8_e4m3fn, "BF16": torch.bfloat16}
MANY = 400
"""Elements beyond which hypothesis draws a seed instead of each one."""


def as_rows(weight: torch.Tensor, cast: str) -> Rows:
    dtype, weight = STORED[weight.dtype], weight.contiguous()
    stored = weight.view(torch.int16).numpy() if dtype == "BF16" else weight.numpy()
    stored.flags.writeable = False
    return Rows(stored, dtype, cast)


def packed(
    weight: torch.Tensor, format: Format, cast: str, ops: RowOps, amax: float | None = None, *, search: bool = False
) -> dict[str, torch.Tensor]:
    """What is stored for one weight, by suffix; `amax` is that of the weight unless given."""
    scheme, rows = scheme_for(format, scale_search=search), as_rows(weight, cast)
    scalars: dict[str, np.float32] = {}
    if scheme.whole_tensor_amax:
        scalars = scheme.scalars(ops.amax(rows) if amax is None else np.float32(amax), TINY[cast])
    arrays = dict(scheme.pack(ops, rows, scalars).arrays) | {
        suffix: np.array(value, np.float32) for suffix, value in scalars.items()
    }
    stored = {output.name: output for output in scheme.outputs("weight", tuple(weight.shape))}
    arrays |= {suffix: np.array(value) for suffix, value in scheme.constants(tuple(weight.shape)).items()}
    tensors = {}
    for suffix, array in arrays.items():
        shape, dtype = stored[suffix].shape, stored[suffix].dtype
        tensor = torch.from_numpy(np.array(array).reshape(shape))
        tensors[suffix] = tensor.view(VIEWED[dtype]) if dtype in VIEWED else tensor
    assert tensors.keys() == stored.keys()
    return tensors


def same_bytes(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    ours, theirs = ours.reshape(-1).contiguous(), theirs.reshape(-1).contiguous()
    return torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def unit(format: Format) -> int:
    """Columns that a weight of any shape has a multiple of."""
    return max(16, FORMATS[format].in_multiple)


@st.composite
def weights(draw: st.DrawFn, dtype: torch.dtype, columns: int = 16) -> torch.Tensor:
    """A finite, not all-zero weight of `dtype`, in blocks of `columns`: any bits at all, bells with outliers, or values
    that tie when rounded; some with zero rows, zero blocks, or as a transposed view."""
    rows, blocks = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    if columns == 128 and draw(st.integers(0, 3)) == 0:
        # Over the end of a block of rows, and up to it.
        rows, blocks = draw(st.sampled_from((127, 128, 129, 200, 256))), draw(st.integers(1, 2))
    shape = (rows, columns * blocks)
    values = draw(st.sampled_from((_any_bits, _bell, _ties)))(draw, shape, dtype)
    if draw(st.booleans()):
        values[draw(st.integers(0, rows - 1))] = 0
    if draw(st.booleans()):
        block = columns * draw(st.integers(0, blocks - 1))
        values[draw(st.integers(0, rows - 1)), block : block + columns] = draw(st.sampled_from((0.0, -0.0)))
    if not values.any():
        values[-1, -1] = 1.0
    return values.t().contiguous().t() if draw(st.booleans()) else values


def _any_bits(draw: st.DrawFn, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Uniform bit patterns: mostly far from each other, many subnormal. Large ones are drawn by their seed."""
    bits = np.uint32 if dtype is torch.float32 else np.uint16
    if shape[0] * shape[1] > MANY:
        generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        array = generator.integers(0, np.iinfo(bits).max, shape, bits, endpoint=True)
    else:
        array = draw(hnp.arrays(bits, shape))
    values = torch.from_numpy(array.view(np.int32 if bits is np.uint32 else np.int16)).view(dtype).clone()
    return torch.where(values.isfinite(), values, torch.tensor(1.5, dtype=dtype))


def _bell(draw: st.DrawFn, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    low, high = (-14, 4) if dtype is torch.float16 else (-126, 100)
    values = torch.randn(shape, generator=generator) * 2.0 ** draw(st.integers(low, high))
    if draw(st.booleans()):
        values[0, 0] *= draw(st.sampled_from((50.0, 3000.0)))
    top = torch.finfo(dtype).max
    return values.clamp(-top, top).to(dtype)


def _ties(draw: st.DrawFn, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Quarters up to 24 at a power of two: with a power-of-two scale, halfway between codes."""
    if shape[0] * shape[1] > MANY:
        quarters = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).integers(-96, 97, shape, np.int8)
    else:
        quarters = draw(hnp.arrays(np.int8, shape, elements=st.integers(-96, 96)))
    quarters[0, 0] = draw(st.sampled_from((96, 84, -96)))
    exponent = draw(st.integers(-8, 4) if dtype is torch.float16 else st.integers(-140, 90))
    return (torch.from_numpy(quarters).double() / 4 * 2.0**exponent).to(dtype)
