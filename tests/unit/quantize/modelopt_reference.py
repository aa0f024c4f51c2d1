"""ModelOpt 0.47 run on single weights: the authority that reference mode is compared with, byte for byte.

For the integer formats, which ModelOpt does not store so, it is the compressed-tensors library.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import nn

from draftmill.formats import Format

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export.quant_utils import (
        get_activation_scaling_factor,
        get_quantization_format,
        get_weight_block_size,
        get_weight_scaling_factor,
        get_weight_scaling_factor_2,
        preprocess_linear_fusion,
        to_quantized_weight,
    )

CONFIGS = {
    Format.FP8: mtq.FP8_DEFAULT_CFG,
    Format.FP8_PC_PT: mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG,
    Format.NVFP4: mtq.NVFP4_DEFAULT_CFG,
    Format.W4A16_NVFP4: mtq.W4A16_NVFP4_CFG,
    Format.MXFP8: mtq.MXFP8_DEFAULT_CFG,
    Format.FP8_PB_WO: mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG,
}
BITS = {Format.INT4_G128: 4, Format.INT8_G128: 8}
STATIC_AMAX = 448.0


def modelopt_tensors(weights: Sequence[torch.Tensor], format: Format, *, fuse: bool) -> list[dict[str, torch.Tensor]]:
    """What ModelOpt stores for each weight, by suffix. `fuse` equalizes the amax as for q/k/v."""
    if format in BITS:
        return [_packed_integers(weight, BITS[format]) for weight in weights]
    linears = quantized_linears([weight.clone() for weight in weights], format)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # ModelOpt would share the scale of siblings that are one block each; engines read a scale per block.
        if fuse and format is not Format.FP8_PB_WO:
            preprocess_linear_fusion(linears)
        return [stored_tensors(linear, format) for linear in linears]


def _packed_integers(weight: torch.Tensor, bits: int) -> dict[str, torch.Tensor]:
    """A bfloat16 scale of the group's range, and the quotient of fp32 values, by the library's own functions."""
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(
        num_bits=bits, type="int", symmetric=True, strategy="group", group_size=128, scale_dtype=torch.bfloat16
    )
    groups = weight.float().reshape(weight.shape[0], -1, 128)
    scale = calculate_qparams(groups.amin(-1), groups.amax(-1), args)[0]
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    stored = PackedQuantizationCompressor.compress({"weight": weight.float(), "weight_scale": scale}, scheme)
    return stored | {"weight_scale": scale.bfloat16()}


def quantized_linears(weights: Sequence[torch.Tensor], format: Format) -> list[nn.Module]:
    """Linears with ModelOpt's calibrated quantizers. The weights carry the cast dtype; only they are calibrated."""
    model = nn.Module()
    for index, weight in enumerate(weights):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        # A name that none of the presets' patterns excludes.
        model.add_module(f"linear{index}", linear)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mtq.quantize(model, CONFIGS[format], forward_loop=None)
    return list(model.children())


def stored_tensors(linear: nn.Module, format: Format) -> dict[str, torch.Tensor]:
    """By suffix, with ModelOpt's own functions. Static activation ranges are set to 448."""
    scale = get_weight_scaling_factor(linear)
    scale_2 = get_weight_scaling_factor_2(linear)
    codes = to_quantized_weight(
        linear.weight.data, scale, get_quantization_format(linear), scale_2, get_weight_block_size(linear)
    )
    if format is Format.FP8_PB_WO:
        # ModelOpt squeezes the scale of a single block; engines read four dimensions.
        rows, columns = linear.weight.shape
        scale = scale.reshape(-(-rows // 128), 1, columns // 128, 1)
    tensors = {"weight": codes, "weight_scale": scale}
    if scale_2 is not None:
        tensors["weight_scale_2"] = scale_2
    if format in (Format.FP8, Format.NVFP4):
        linear.input_quantizer.amax = torch.tensor(STATIC_AMAX)
        tensors["input_scale"] = get_activation_scaling_factor(linear)
    return tensors
