"""fp8_pc_pt: one E4M3 scale per output row, activations scaled per token at run time."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from draftmill.formats import FORMATS, Format, FormatSpec
from draftmill.plans import OutputTensor
from draftmill_worker.quantize.formats.base import WEIGHT, Packed, Scheme, not_a_matrix, output
from draftmill_worker.quantize.formats.fp8 import e4m3_error_bound, e4m3_scale
from draftmill_worker.quantize.kernels.rows import TINY

if TYPE_CHECKING:
    import torch

    from draftmill_worker.quantize.kernels import RowOps, Rows


class Fp8PerChannel(Scheme):
    """weight E4M3 [out, in]; weight_scale F32 [out]."""

    whole_tensor_amax = False

    @property
    def spec(self) -> FormatSpec:
        return FORMATS[Format.FP8_PC_PT]

    def outputs(self, name: str, shape: tuple[int, ...]) -> tuple[OutputTensor, ...]:
        return (output(name, WEIGHT, "F8_E4M3", shape), output(name, "weight_scale", "F32", (shape[0],)))

    def refusal(self, shape: tuple[int, ...]) -> str | None:
        if reason := not_a_matrix(shape):
            return reason
        # ModelOpt squeezes the scale of a single row to a scalar, which no engine reads as [out].
        return "has one row: its per-row scale would collapse to a scalar" if shape[0] == 1 else None

    @override
    def scalars(self, amax: np.float32, tiny: np.float32) -> dict[str, np.float32]:
        return {}

    @override
    def pack(self, ops: "RowOps", rows: "Rows", scalars: Mapping[str, np.float32]) -> Packed:
        amax = ops.row_amax(rows)
        zeros = int((amax == 0).sum())
        if not np.isfinite(amax).all():
            return Packed(arrays={}, zeros=zeros, finite=False)
        scales = e4m3_scale(amax, TINY[rows.cast])
        return Packed(arrays={WEIGHT: ops.e4m3(rows, scales), "weight_scale": scales}, zeros=zeros, finite=True)

    @override
    def error_bound(self, weight: "torch.Tensor", amax: float | None = None) -> "torch.Tensor":
        return e4m3_error_bound(weight, weight.abs().amax(dim=1, keepdim=True) / 448.0)
