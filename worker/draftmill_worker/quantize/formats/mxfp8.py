"""mxfp8: E4M3 codes, an E8M0 scale (a power of two) per 32 columns. Stored as ModelOpt 0.47 stores it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from draftmill.formats import FORMATS, Format, FormatSpec
from draftmill.plans import OutputTensor
from draftmill_worker.quantize.formats.base import WEIGHT, Packed, Scheme, not_a_matrix, output
from draftmill_worker.quantize.formats.fp8 import e4m3_error_bound
from draftmill_worker.quantize.kernels.rows import MX_BLOCK

if TYPE_CHECKING:
    import torch

    from draftmill_worker.quantize.kernels import RowOps, Rows


class Mxfp8(Scheme):
    """weight E4M3 [out, in]; weight_scale U8 [out, in/32], 2^(code - 127)."""

    whole_tensor_amax = False

    @property
    def spec(self) -> FormatSpec:
        return FORMATS[Format.MXFP8]

    def outputs(self, name: str, shape: tuple[int, ...]) -> tuple[OutputTensor, ...]:
        rows, columns = shape
        return (
            output(name, WEIGHT, "F8_E4M3", shape),
            output(name, "weight_scale", "U8", (rows, columns // MX_BLOCK)),
        )

    def refusal(self, shape: tuple[int, ...]) -> str | None:
        if reason := not_a_matrix(shape):
            return reason
        return f"has {shape[1]} columns, which {MX_BLOCK} does not divide" if shape[1] % MX_BLOCK else None

    @override
    def scalars(self, amax: np.float32, tiny: np.float32) -> dict[str, np.float32]:
        return {}

    @override
    def pack(self, ops: "RowOps", rows: "Rows", scalars: Mapping[str, np.float32]) -> Packed:
        codes, scales, zeros, finite = ops.mxfp8(rows)
        # ModelOpt has no check here: a NaN gives its block the smallest scale, and the block's other values 448.
        arrays = {WEIGHT: codes, "weight_scale": scales} if finite else {}
        return Packed(arrays=arrays, zeros=zeros, finite=finite)

    @override
    def error_bound(self, weight: "torch.Tensor", amax: float | None = None) -> "torch.Tensor":
        """E4M3's, with the scale rounded up to a power of two: at most 2 * block amax / 448, and at least 2^-127."""
        blocks = weight.reshape(weight.shape[0], -1, MX_BLOCK)
        scale = (blocks.abs().amax(dim=2, keepdim=True) / 224.0).clamp(min=2.0**-127)
        return e4m3_error_bound(blocks, scale).reshape(weight.shape)
