"""nvfp4 and w4a16_nvfp4: E2M1 codes, an E4M3 scale per 16 columns, an fp32 scale per tensor."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from draftmill.formats import FORMATS, Format, FormatSpec
from draftmill.plans import OutputTensor
from draftmill_worker.quantize.formats.activation import E2M1_MAX, E4M3_MAX, input_scale
from draftmill_worker.quantize.formats.base import WEIGHT, Packed, Scheme, not_a_matrix, output

if TYPE_CHECKING:
    import torch

    from draftmill_worker.quantize.kernels import RowOps, Rows

BLOCK = 16


class Nvfp4(Scheme):
    """weight U8 [out, in/2], low nibble = even column; weight_scale E4M3 [out, in/16]; weight_scale_2 F32 [];
    input_scale F32 [] where the format quantizes activations."""

    whole_tensor_amax = True

    def __init__(self, format: Format) -> None:
        self._spec = FORMATS[format]
        self._input_scale = input_scale(format)

    @property
    def spec(self) -> FormatSpec:
        return self._spec

    def outputs(self, name: str, shape: tuple[int, ...]) -> tuple[OutputTensor, ...]:
        rows, columns = shape
        outputs = (
            output(name, WEIGHT, "U8", (rows, columns // 2)),
            output(name, "weight_scale", "F8_E4M3", (rows, columns // BLOCK)),
            output(name, "weight_scale_2", "F32", ()),
        )
        return outputs if self._input_scale is None else (*outputs, output(name, "input_scale", "F32", ()))

    def refusal(self, shape: tuple[int, ...]) -> str | None:
        if reason := not_a_matrix(shape):
            return reason
        return f"has {shape[1]} columns, which {BLOCK} does not divide" if shape[1] % BLOCK else None

    @override
    def scalars(self, amax: np.float32, tiny: np.float32) -> dict[str, np.float32]:
        """weight_scale_2 = amax / (6 * 448), unclamped. Where it is zero, ModelOpt gives NaN block scales."""
        scalars = {"weight_scale_2": np.float32(amax / (E2M1_MAX * E4M3_MAX))}
        return scalars if self._input_scale is None else scalars | {"input_scale": self._input_scale}

    def pack(self, ops: "RowOps", rows: "Rows", scalars: Mapping[str, np.float32]) -> Packed:
        codes, scales, zeros = ops.e2m1(rows, scalars["weight_scale_2"])
        return Packed(arrays={WEIGHT: codes, "weight_scale": scales}, zeros=zeros, finite=True)

    def error_bound(self, weight: "torch.Tensor", amax: float | None = None) -> "torch.Tensor":
        """max(b_hi/4, |w|/5, |w| - 6*b_lo), with b_lo and b_hi the ends of the block scale after its rounding.

        E2M1 (OCP microscaling formats, 1.0) holds 0, .5, 1, 1.5, 2, 3, 4, 6: below 2 the error is at most a quarter
        of the scale, above it at most a fifth of the value (the worst points are 2.5 and 5), and beyond 6 the code
        saturates. The block scale t = block amax / (6 * scale_2), clamped to [2^-9, 448], is off by at most
        max(t * 2^-4, 2^-10), half a unit of E4M3. The last terms cover fp32's roundings and its subnormals.
        """
        import torch

        top = weight.abs().max() if amax is None else torch.tensor(amax, dtype=torch.float32)
        scale_2 = top / 2688.0
        blocks = weight.reshape(weight.shape[0], -1, BLOCK).abs()
        ideal = (blocks.amax(dim=-1, keepdim=True) / (6.0 * scale_2)).clamp(2.0**-9, 448.0)
        half_unit = torch.clamp(ideal * 2.0**-4, min=2.0**-10)
        low, high = (ideal - half_unit) * scale_2, (ideal + half_unit) * scale_2
        bound = torch.maximum(torch.maximum(high / 4, blocks / 5), blocks - 6 * low)
        return (bound * (1 + 2.0**-18) + 2.0**-140).reshape(weight.shape)
