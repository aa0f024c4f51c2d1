"""compressed-tensors' own functions, run on rows of a weight: the authority for the integer formats' bytes.

It comes with vLLM, not with the worker. Each row depends on itself alone.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from draftmill.formats import Format
from draftmill_worker.verify.reference import GROUP, INTEGER_BITS, cast_dtype

if TYPE_CHECKING:
    import torch


def installed() -> bool:
    return find_spec("compressed_tensors") is not None


def quantize_rows(format: Format, weight: "torch.Tensor", rows: Sequence[int], dtype: str) -> "dict[str, torch.Tensor]":
    """What the library packs for `weight[rows]`, by suffix: its min-max scale in bfloat16, its rounding of the weight's
    quotient by it in fp32, its words."""
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    bits = INTEGER_BITS[format]
    args = QuantizationArgs(
        num_bits=bits, type="int", symmetric=True, strategy="group", group_size=GROUP, scale_dtype=torch.bfloat16
    )
    part = weight[list(rows)].to(cast_dtype(weight, dtype)).float()
    groups = part.reshape(len(part), -1, GROUP)
    scale = calculate_qparams(groups.amin(-1), groups.amax(-1), args)[0]
    codes = quantize(part, scale, None, args, dtype=torch.int8)
    return {"weight_packed": pack_to_int32(codes, bits), "weight_scale": scale.bfloat16()}
