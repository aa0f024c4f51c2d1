"""What a quantization scheme knows: its output tensors, its refusals, its scales and its error bound.

A scheme holds the arithmetic of scales; loops over elements are in `kernels`, files are in `stream`.
Weights have shape [out, in], row-major. No torch, no numba at import.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from draftmill.formats import FormatSpec
from draftmill.plans import OutputTensor
from draftmill_worker.quantize.kernels.rows import SquaredErrors

if TYPE_CHECKING:
    import torch

    from draftmill_worker.quantize.kernels import RowOps, Rows

WEIGHT = "weight"
SCALE = "weight_scale"


@dataclass(frozen=True, slots=True)
class Packed:
    """Some consecutive rows of one weight, quantized."""

    arrays: Mapping[str, NDArray[np.generic]]
    """Per suffix, the rows' part of that output; every row has the same number of bytes."""
    zeros: int
    """Scale units (rows or blocks) that hold only zeros."""
    finite: bool
    """False when a row was found to hold NaN or Inf in the cast dtype; there are no arrays then."""
    errors: SquaredErrors | None = None
    """What a scale search gained."""


class Scheme(Protocol):
    @property
    def spec(self) -> FormatSpec: ...

    @property
    def whole_tensor_amax(self) -> bool:
        """True when a weight's amax, or its fused group's, must be known before the first row is packed."""
        ...

    @property
    def row_block(self) -> int:
        """Rows that share a scale; a weight is packed in multiples of them."""
        return 1

    @property
    def lm_head_refusal(self) -> str | None:
        """Why no engine reads a head in this format."""
        return None

    def outputs(self, name: str, shape: tuple[int, ...]) -> tuple[OutputTensor, ...]:
        """What `name`, a weight of `shape` [out, in], becomes: the weight first, then its scales."""
        ...

    def refusal(self, shape: tuple[int, ...]) -> str | None:
        """Why a weight of `shape` cannot be quantized and served; None when it can."""
        ...

    def followed_refusal(self, shape: tuple[int, ...]) -> str | None:  # noqa: ARG002
        """Why a weight of `shape` cannot stand before another one in a layer that the engine fuses."""
        return None

    def constants(self, shape: tuple[int, ...]) -> Mapping[str, NDArray[np.generic]]:  # noqa: ARG002
        """Outputs by suffix that follow from the shape alone."""
        return {}

    def scalars(self, amax: np.float32, tiny: np.float32) -> dict[str, np.float32]:
        """Per-tensor outputs by suffix, from the amax of the weight or of its fused group.

        `tiny` is the smallest normal number of the dtype the amax was taken in. A scale of zero means that the weight
        cannot be stored: all of it is zero, or so small that fp32 has no scale for it.
        """
        ...

    def pack(self, ops: "RowOps", rows: "Rows", scalars: Mapping[str, np.float32]) -> Packed: ...

    def error_bound(self, weight: "torch.Tensor", amax: float | None = None) -> "torch.Tensor":
        """Per element, the largest error |dequantized - weight| that correct rounding can give.

        `weight` is fp32 [out, in] holding the cast dtype's values; `amax` is the fused group's where the scale is
        shared. The bound follows from the source alone, so that a wrong scale cannot widen it.
        """
        ...


def output(name: str, suffix: str, dtype: str, shape: tuple[int, ...]) -> OutputTensor:
    """`q_proj.weight` with suffix `weight_scale` is `q_proj.weight_scale`."""
    stem = name.removesuffix(WEIGHT)
    if stem == name:
        raise ValueError(f"{name} is not a module's weight")
    return OutputTensor(name=stem + suffix, dtype=dtype, shape=shape)


def not_a_matrix(shape: tuple[int, ...]) -> str | None:
    if len(shape) != 2:
        return f"has {len(shape)} dimensions; a linear weight has 2"
    if 0 in shape:
        return "has no elements"
    return None
