"""NVIDIA ModelOpt's own export functions, run on rows of a weight: the authority for the bytes.

Rows are enough. Once the tensor's amax is known, each row's codes and scales depend on that row alone.
"""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from draftmill.formats import Format
from draftmill_worker.verify.reference import BLOCK, E4M3_MAX, GROUP, NVFP4_KINDS, cast_dtype

if TYPE_CHECKING:
    import torch

_FORMAT_NAMES = {
    Format.FP8: "fp8",
    Format.FP8_PC_PT: "fp8_pc_pt",
    Format.NVFP4: "nvfp4",
    Format.W4A16_NVFP4: "w4a16_nvfp4",
}
_E4M3: dict[str, Any] = {"num_bits": (4, 3)}
_E2M1: dict[str, Any] = {"num_bits": (2, 1), "block_sizes": {-1: BLOCK, "type": "dynamic", "scale_bits": (4, 3)}}


def quantize_rows(
    format: Format,
    weight: "torch.Tensor",
    rows: Sequence[int],
    top: "torch.Tensor",
    dtype: str,
    *,
    block_scales: "torch.Tensor | None" = None,
) -> "dict[str, torch.Tensor]":
    """What ModelOpt stores for `weight[rows]`, by suffix; per-tensor scales are those of the whole tensor.

    For fp8_pb_wo the rows are whole blocks. ModelOpt squeezes the scale of a single block, which is put right here.
    `top` is the amax of the tensor or of its fused group, in the cast dtype that `dtype` names. With `block_scales`,
    NVFP4 codes are those for these scales of the rows, which are not in the answer.
    """
    part = weight[list(rows)].to(cast_dtype(weight, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of rows that are all zero; those are part of what is compared
        if format is Format.MXFP8:
            return _mxfp8(part)
        if format is Format.FP8_PB_WO:
            return _fp8_blocks(part)
        return _nvfp4(format, part, top, block_scales) if format in NVFP4_KINDS else _fp8(format, part, top)


def _fp8(format: Format, part: "torch.Tensor", top: "torch.Tensor") -> "dict[str, torch.Tensor]":
    import torch
    from modelopt.torch.export.quant_utils import get_scaling_factor, to_quantized_weight
    from modelopt.torch.quantization.utils import reduce_amax

    per_row = format is Format.FP8_PC_PT
    amax = reduce_amax(part, axis=1, squeeze_scalar=False) if per_row else top
    scale = get_scaling_factor(_quantizer(amax, axis=0 if per_row else None, **_E4M3))
    stored = {"weight": to_quantized_weight(part, scale, _FORMAT_NAMES[format]), "weight_scale": scale}
    if not per_row:
        stored["input_scale"] = get_scaling_factor(_quantizer(torch.tensor(E4M3_MAX), **_E4M3))
    return stored


def _nvfp4(
    format: Format, part: "torch.Tensor", top: "torch.Tensor", given: "torch.Tensor | None"
) -> "dict[str, torch.Tensor]":
    import torch
    from modelopt.torch.export.quant_utils import to_quantized_weight
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    quantizer = _quantizer(top, **_E2M1)
    scale_2 = NVFP4QTensor.get_weights_scaling_factor_2_from_quantizer(quantizer)
    scale = given
    if scale is None:
        scale = NVFP4QTensor.get_weights_scaling_factor_from_quantizer(quantizer, part, scale_2)[0]
    codes = to_quantized_weight(part, scale, _FORMAT_NAMES[format], scale_2, BLOCK)
    stored = {"weight": codes, "weight_scale_2": scale_2} | ({"weight_scale": scale} if given is None else {})
    if format is Format.NVFP4:
        activation = _quantizer(torch.tensor(E4M3_MAX), **_E2M1)
        stored["input_scale"] = NVFP4QTensor.get_activation_scaling_factor(activation)
    return stored


def _mxfp8(part: "torch.Tensor") -> "dict[str, torch.Tensor]":
    from modelopt.torch.quantization.qtensor import MXFP8QTensor

    scale = MXFP8QTensor.get_weights_scaling_factor(part)
    return {"weight": MXFP8QTensor.quantize_with_scale(part, scale), "weight_scale": scale}


def _fp8_blocks(part: "torch.Tensor") -> "dict[str, torch.Tensor]":
    from modelopt.torch.export.quant_utils import get_scaling_factor, to_quantized_weight
    from modelopt.torch.quantization.utils import reduce_block_amax, reduce_block_padding

    sizes = {-1: GROUP, -2: GROUP}
    amax = reduce_block_amax(reduce_block_padding(part, sizes), sizes)
    scale = get_scaling_factor(_quantizer(amax, block_sizes=sizes, **_E4M3)).reshape(amax.shape)
    codes = to_quantized_weight(part, scale, "fp8_pb_wo", block_size=GROUP)
    return {"weight": codes, "weight_scale": scale[:, None, :, None]}


def _quantizer(amax: "torch.Tensor", **attributes: Any) -> Any:
    from modelopt.torch.quantization.config import QuantizerAttributeConfig
    from modelopt.torch.quantization.nn import TensorQuantizer

    quantizer = TensorQuantizer(QuantizerAttributeConfig(**attributes))
    quantizer.amax = amax
    return quantizer
