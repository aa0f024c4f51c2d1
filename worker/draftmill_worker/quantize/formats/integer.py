"""int4_g128 and int8_g128: integers to nearest with a scale per 128 columns, weights alone, in pack-quantized layout.

The arithmetic is compressed-tensors' for a symmetric min-max range (quantization/utils/helpers.py,
`calculate_qparams`), with the quotient in fp32: in bfloat16, as the library takes it of a bfloat16 weight, it is
rounded twice, and int8 codes are no longer the nearest.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from draftmill.formats import FORMATS, Format, FormatSpec
from draftmill.plans import OutputTensor
from draftmill_worker.quantize.formats import pack_quantized
from draftmill_worker.quantize.formats.base import Packed, Scheme, not_a_matrix, output
from draftmill_worker.quantize.kernels.rows import GROUP

if TYPE_CHECKING:
    import torch

    from draftmill_worker.quantize.kernels import RowOps, Rows

# torch.finfo(torch.bfloat16).eps, which the library puts in place of a scale of zero.
_EPS = np.float32(2.0**-7)


class Integer(Scheme):
    """weight_packed I32 [out, in * bits / 32]; weight_scale BF16 [out, in/128]; weight_shape I64 [2].

    Scales are bfloat16 whatever the source is: engines compute in it, and would round them when they load.
    """

    whole_tensor_amax = False

    def __init__(self, format: Format) -> None:
        self._spec = FORMATS[format]
        self._bits = self._spec.bits
        # The library divides by half of the range, which is no code: 7.5 or 127.5.
        self._half = np.float32((2**self._bits - 1) / 2)

    @property
    def spec(self) -> FormatSpec:
        return self._spec

    def outputs(self, name: str, shape: tuple[int, ...]) -> tuple[OutputTensor, ...]:
        rows, columns = shape
        return (
            output(name, pack_quantized.PACKED, "I32", (rows, columns * self._bits // 32)),
            output(name, pack_quantized.SCALE, "BF16", (rows, columns // GROUP)),
            output(name, pack_quantized.SHAPE, "I64", (2,)),
        )

    def refusal(self, shape: tuple[int, ...]) -> str | None:
        if reason := not_a_matrix(shape):
            return reason
        return f"has {shape[1]} columns, which {GROUP} does not divide" if shape[1] % GROUP else None

    @override
    def constants(self, shape: tuple[int, ...]) -> Mapping[str, NDArray[np.generic]]:
        return {pack_quantized.SHAPE: pack_quantized.stored_shape(shape)}

    @override
    def scalars(self, amax: np.float32, tiny: np.float32) -> dict[str, np.float32]:
        return {}

    @override
    def pack(self, ops: "RowOps", rows: "Rows", scalars: Mapping[str, np.float32]) -> Packed:
        amax = ops.group_amax(rows)
        zeros = int((amax == 0).sum())
        if not np.isfinite(amax).all():
            return Packed(arrays={}, zeros=zeros, finite=False)
        scales = _bfloat16(amax / self._half)
        values = (scales.astype(np.uint32) << np.uint32(16)).view(np.float32)
        codes = ops.int_groups(rows, values, self._bits)
        return Packed(
            arrays={pack_quantized.PACKED: codes.view(np.int32), pack_quantized.SCALE: scales}, zeros=zeros, finite=True
        )

    @override
    def error_bound(self, weight: "torch.Tensor", amax: float | None = None) -> "torch.Tensor":
        """max(s_hi / 2, |w| - m * s_lo) with m = 2^(bits-1) - 1, and s_lo and s_hi the ends of the scale's rounding.

        The scale is amax / (m + 1/2), so that the largest positive values saturate by up to half a step.
        """
        import torch

        groups = weight.reshape(weight.shape[0], -1, GROUP).abs()
        ideal = groups.amax(dim=2, keepdim=True) / float(self._half)
        low, high = ideal * (1 - 2.0**-8) - 2.0**-134, ideal * (1 + 2.0**-8) + 2.0**-134
        bound = torch.maximum(high / 2, groups - (2 ** (self._bits - 1) - 1) * low)
        return (bound * (1 + 2.0**-18) + 2.0**-130).reshape(weight.shape)


def _bfloat16(scales: NDArray[np.float32]) -> NDArray[np.uint16]:
    """bfloat16 bits to nearest even; what becomes zero is `_EPS`."""
    bits = scales.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    eps = np.uint16(_EPS.view(np.uint32) >> np.uint32(16))
    return np.where(rounded == 0, eps, rounded)
