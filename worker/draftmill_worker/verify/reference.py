"""The formats' arithmetic in plain torch, written from their definitions and not from the quantizer.

E4M3: OCP 8-bit floating point 1.0. E2M1 with E4M3 block scales: OCP microscaling formats 1.0 and NVIDIA's NVFP4. E8M0
scales: OCP microscaling formats 1.0.
Weights are [rows, columns].
"""

from typing import TYPE_CHECKING

from draftmill.formats import Format
from draftmill_worker.verify.tensors import chunks

if TYPE_CHECKING:
    import torch

E4M3_MAX = 448.0
E2M1_MAX = 6.0
BLOCK = 16
MX_BLOCK = 32
GROUP = 128
INTEGER_BITS = {Format.INT4_G128: 4, Format.INT8_G128: 8}
ROWS_PER_SCALE = {Format.FP8_PB_WO: 128}
"""Rows that share a scale, where it is more than one."""
NVFP4_KINDS = frozenset({Format.NVFP4, Format.W4A16_NVFP4})


def cast_dtype(weight: "torch.Tensor", dtype: str) -> "torch.dtype":
    """The dtype in which a quantized weight's values and amax are taken."""
    import torch

    return {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(dtype, weight.dtype)


def amax_of(weight: "torch.Tensor", dtype: str) -> "torch.Tensor":
    """Largest magnitude in the cast dtype, 0-dim of that dtype."""
    import torch

    cast = cast_dtype(weight, dtype)
    flat = weight.flatten()
    tops = [torch.stack(torch.aminmax(flat[part].to(cast))).abs().max() for part in chunks((len(flat),), deep=True)]
    return torch.stack(tops).max()


def tensor_scale(format: Format, top: "torch.Tensor") -> "torch.Tensor":
    """amax / 448, or amax / (6 * 448) for NVFP4's second level; fp32. `top` is an amax in the cast dtype."""
    if format in NVFP4_KINDS:
        return top.float() / (E2M1_MAX * E4M3_MAX)
    return _e4m3_scale(top)


def _e4m3_scale(amax: "torch.Tensor") -> "torch.Tensor":
    """amax / 448; an amax of zero gives 1, and none counts for less than its dtype's smallest normal number."""
    import torch

    positive = amax.clamp(min=torch.finfo(amax.dtype).tiny).float()
    return torch.where(amax == 0, E4M3_MAX, positive) / E4M3_MAX


def block_scales(format: Format, rows: "torch.Tensor", top: "torch.Tensor") -> "torch.Tensor":
    """Per row fp32 for fp8_pc_pt, and per block of 128x128, in four dimensions, for fp8_pb_wo; per 32 columns E8M0
    codes for mxfp8; per 128 columns bfloat16 for integers; per 16 columns E4M3 for NVFP4, where `top` is the tensor's
    or its group's amax."""
    import torch

    if format is Format.FP8_PB_WO:
        padded = torch.nn.functional.pad(rows.abs(), (0, 0, 0, -rows.shape[0] % GROUP))
        blocks = padded.reshape(-1, GROUP, rows.shape[1] // GROUP, GROUP).amax(dim=(1, 3))
        return _e4m3_scale(blocks)[:, None, :, None]
    if format in INTEGER_BITS:
        tops = rows.reshape(rows.shape[0], -1, GROUP).abs().amax(dim=-1).float()
        scales = (tops / ((2 ** INTEGER_BITS[format] - 1) / 2)).bfloat16()
        return torch.where(scales == 0, torch.finfo(torch.bfloat16).eps, scales)
    if format is Format.MXFP8:
        return _e8m0_codes(rows.reshape(rows.shape[0], -1, MX_BLOCK).abs().amax(dim=-1).float() / E4M3_MAX)
    if format in NVFP4_KINDS:
        blocks = rows.reshape(rows.shape[0], -1, BLOCK).abs().amax(dim=-1).float()
        scales = blocks / (E2M1_MAX * tensor_scale(format, top))
        scales = torch.where(scales == 0, 1.0, scales)
        return scales.clamp(2.0**-9, E4M3_MAX).to(torch.float8_e4m3fn)
    return _e4m3_scale(rows.abs().amax(dim=1))


def _e8m0_codes(scale: "torch.Tensor") -> "torch.Tensor":
    """uint8 codes of the power of two at or above each scale; 0, which is 2^-127, for what is smaller than that."""
    import torch

    return (torch.log2(scale).ceil().clamp(-127, 127) + 127).to(torch.uint8)


def numbers(format: Format, scale: "torch.Tensor") -> "torch.Tensor":
    """What stored block, row or tensor scales stand for, fp32. An E8M0 code of 255 is NaN."""
    import torch

    if format is Format.MXFP8:
        return torch.where(scale == 255, torch.nan, torch.ldexp(torch.ones(scale.shape), scale.int() - 127))
    return scale.float()


def scale_part(format: Format, part: slice) -> slice:
    """The scales' rows that belong to rows `part` of a weight; `part` starts where a scale does."""
    per = ROWS_PER_SCALE.get(format, 1)
    return slice(part.start // per, -(-part.stop // per))


def steps(format: Format, scale: "torch.Tensor", shape: "torch.Size") -> "torch.Tensor":
    """The scale of each element of a weight's rows of `shape`, broadcastable to it, from `numbers`."""
    if format in ROWS_PER_SCALE:
        blocks = scale.reshape(scale.shape[0], scale.shape[2])
        return blocks.repeat_interleave(GROUP, 0)[: shape[0]].repeat_interleave(GROUP, 1)
    return scale.repeat_interleave(shape[1] // scale.shape[1], dim=1) if scale.dim() > 1 else scale.reshape(-1, 1)


def input_scale(format: Format) -> float:
    """Without calibration the range is E4M3's own: amax 448."""
    import torch

    divisor = E2M1_MAX * E4M3_MAX if format in NVFP4_KINDS else E4M3_MAX
    return float(torch.tensor(E4M3_MAX) / divisor)


def half_steps(format: Format, scaled: "torch.Tensor") -> "torch.Tensor":
    """Distance within which the nearest code of weight / scale must lie, element-wise, in units of the scale.

    `scaled` is fp32. Integers are one apart, from -2^(bits-1) to 2^(bits-1) - 1. Between powers of two a format's codes
    are evenly spaced: E4M3 has eight in [2^k, 2^(k+1)) and subnormals 2^-9 apart, E2M1 has two and subnormals 0.5
    apart. What lies beyond the largest code saturates.
    """
    import torch

    if format in INTEGER_BITS:
        half = 2 ** (INTEGER_BITS[format] - 1)
        return torch.maximum(scaled - (half - 1), -half - scaled).clamp(min=0.5)
    size = scaled.abs()
    power = (size.view(torch.int32) & 0x7F800000).view(torch.float32)  # 2^k: the exponent bits alone
    if format in NVFP4_KINDS:
        return torch.maximum((power / 4).clamp(min=0.25), size - E2M1_MAX)
    return torch.maximum((power / 16).clamp(min=2.0**-10), size - E4M3_MAX)
