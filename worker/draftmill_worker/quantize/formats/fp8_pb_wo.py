"""fp8_pb_wo: one E4M3 scale per block of 128x128, activations scaled per token and 128 columns at run time."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from draftmill.formats import FORMATS, Format, FormatSpec
from draftmill.plans import OutputTensor
from draftmill_worker.quantize.formats.base import WEIGHT, Packed, Scheme, not_a_matrix, output
from draftmill_worker.quantize.formats.fp8 import e4m3_error_bound, e4m3_scale
from draftmill_worker.quantize.kernels.rows import GROUP, TINY

if TYPE_CHECKING:
    import torch

    from draftmill_worker.quantize.kernels import RowOps, Rows


class Fp8PerBlock(Scheme):
    """weight E4M3 [out, in]; weight_scale F32 [ceil(out/128), 1, in/128, 1], which engines read in four dimensions.

    The last rows may fill a part of their block, as in ModelOpt, which pads with zeros.
    """

    whole_tensor_amax = False
    row_block = GROUP
    lm_head_refusal = "vLLM 0.32 cuts a head's scales by rows of the vocabulary and refuses a scale per 128 rows"

    @property
    def spec(self) -> FormatSpec:
        return FORMATS[Format.FP8_PB_WO]

    def outputs(self, name: str, shape: tuple[int, ...]) -> tuple[OutputTensor, ...]:
        rows, columns = shape
        return (
            output(name, WEIGHT, "F8_E4M3", shape),
            output(name, "weight_scale", "F32", (-(-rows // GROUP), 1, columns // GROUP, 1)),
        )

    def refusal(self, shape: tuple[int, ...]) -> str | None:
        if reason := not_a_matrix(shape):
            return reason
        return f"has {shape[1]} columns, which {GROUP} does not divide" if shape[1] % GROUP else None

    @override
    def followed_refusal(self, shape: tuple[int, ...]) -> str | None:
        # vLLM lays the scales of siblings behind each other in whole blocks, their rows without a gap.
        if shape[0] % GROUP == 0:
            return None
        return f"has {shape[0]} rows, which {GROUP} does not divide, before the rows of a sibling in one layer"

    @override
    def scalars(self, amax: np.float32, tiny: np.float32) -> dict[str, np.float32]:
        return {}

    @override
    def pack(self, ops: "RowOps", rows: "Rows", scalars: Mapping[str, np.float32]) -> Packed:
        groups = ops.group_amax(rows)
        count = groups.shape[0]
        amax = np.maximum.reduceat(groups, np.arange(0, count, GROUP), axis=0)
        zeros = int((amax == 0).sum())
        if not np.isfinite(amax).all():
            return Packed(arrays={}, zeros=zeros, finite=False)
        scales = e4m3_scale(amax, TINY[rows.cast])
        codes = ops.e4m3_groups(rows, np.repeat(scales, GROUP, axis=0)[:count])
        return Packed(arrays={WEIGHT: codes, "weight_scale": scales}, zeros=zeros, finite=True)

    @override
    def error_bound(self, weight: "torch.Tensor", amax: float | None = None) -> "torch.Tensor":
        """E4M3's, with the scale of the element's block."""
        import torch

        rows, columns = weight.shape
        padded = torch.nn.functional.pad(weight.abs(), (0, 0, 0, -rows % GROUP))
        top = padded.reshape(-1, GROUP, columns // GROUP, GROUP).amax(dim=(1, 3))
        scale = top.repeat_interleave(GROUP, 0)[:rows].repeat_interleave(GROUP, 1) / 448.0
        return e4m3_error_bound(weight, scale)
