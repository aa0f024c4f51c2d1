"""fp8: one E4M3 scale per tensor, static activation scale. Stored as ModelOpt 0.47 stores it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from draftmill.formats import FORMATS, Format, FormatSpec
from draftmill.plans import OutputTensor
from draftmill_worker.quantize.formats.activation import E4M3_MAX, input_scale
from draftmill_worker.quantize.formats.base import WEIGHT, Packed, Scheme, not_a_matrix, output

if TYPE_CHECKING:
    import torch

    from draftmill_worker.quantize.kernels import RowOps, Rows


class Fp8(Scheme):
    """weight E4M3 [out, in]; weight_scale F32 [1]; input_scale F32 [1]."""

    whole_tensor_amax = True

    @property
    def spec(self) -> FormatSpec:
        return FORMATS[Format.FP8]

    def outputs(self, name: str, shape: tuple[int, ...]) -> tuple[OutputTensor, ...]:
        return (
            output(name, WEIGHT, "F8_E4M3", shape),
            output(name, "weight_scale", "F32", (1,)),
            output(name, "input_scale", "F32", (1,)),
        )

    def refusal(self, shape: tuple[int, ...]) -> str | None:
        return not_a_matrix(shape)

    def scalars(self, amax: np.float32, tiny: np.float32) -> dict[str, np.float32]:
        activation = input_scale(Format.FP8)
        if activation is None:
            raise AssertionError("fp8 stores a static activation scale")
        return {"weight_scale": e4m3_scale(np.array([amax]), tiny)[0], "input_scale": activation}

    def pack(self, ops: "RowOps", rows: "Rows", scalars: Mapping[str, np.float32]) -> Packed:
        codes = ops.e4m3(rows, np.array([scalars["weight_scale"]], np.float32))
        return Packed(arrays={WEIGHT: codes}, zeros=0, finite=True)

    def error_bound(self, weight: "torch.Tensor", amax: float | None = None) -> "torch.Tensor":
        import torch

        top = weight.abs().max() if amax is None else torch.tensor(amax, dtype=torch.float32)
        return e4m3_error_bound(weight, top / 448.0)


def e4m3_scale(amax: NDArray[np.float32], tiny: np.float32) -> NDArray[np.float32]:
    """amax / 448 in fp32, element-wise. Zero becomes 448 (scale 1), the rest is at least `tiny`, as in ModelOpt."""
    safe: NDArray[np.float32] = np.where(amax == 0, E4M3_MAX, np.maximum(amax, tiny))
    return safe / E4M3_MAX


def e4m3_error_bound(weight: "torch.Tensor", scale: "torch.Tensor") -> "torch.Tensor":
    """max(scale * 2^-10, |w| * 2^-4), element-wise; `scale` broadcasts over `weight`.

    E4M3 (OCP 8-bit floating point, 1.0) has 3 mantissa bits, so that half a unit in the last place is at most 2^-4
    of a normal value, and subnormals are 2^-9 apart. The factor covers the fp32 roundings of w/scale and code*scale,
    the addend fp32's own subnormals.
    """
    import torch

    bound = torch.maximum(scale * 2.0**-10, weight.abs() * 2.0**-4)
    return bound * (1 + 2.0**-20) + 2.0**-140
