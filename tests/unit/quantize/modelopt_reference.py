"""ModelOpt 0.47 run on single weights: the authority that reference mode is compared with, byte for byte."""

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
}
STATIC_AMAX = 448.0


def modelopt_tensors(weights: Sequence[torch.Tensor], format: Format, *, fuse: bool) -> list[dict[str, torch.Tensor]]:
    """What ModelOpt stores for each weight, by suffix. `fuse` equalizes the amax as for q/k/v."""
    linears = quantized_linears([weight.clone() for weight in weights], format)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if fuse:
            preprocess_linear_fusion(linears)
        return [stored_tensors(linear, format) for linear in linears]


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
    tensors = {"weight": codes, "weight_scale": scale}
    if scale_2 is not None:
        tensors["weight_scale_2"] = scale_2
    if format in (Format.FP8, Format.NVFP4):
        linear.input_quantizer.amax = torch.tensor(STATIC_AMAX)
        tensors["input_scale"] = get_activation_scaling_factor(linear)
    return tensors
