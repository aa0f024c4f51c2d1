"""Stored tensors back to numbers, in plain torch. Shares nothing with the code that packs."""

from collections.abc import Mapping

import torch

from draftmill.formats import Format

# OCP microscaling formats 1.0, table 5: sign, two exponent bits, one mantissa bit.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_INTEGER_BITS = {Format.INT4_G128: 4, Format.INT8_G128: 8}


def dequantize(format: Format, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The weight [out, in] in fp32, from the stored tensors by suffix: `weight`, `weight_scale`, `weight_scale_2`.

    fp8: code * scale. fp8_pc_pt: code * scale of its row. nvfp4 kinds: code * (block scale * weight_scale_2), the
    products in fp32 in that order. mxfp8: code * 2^(scale - 127), NaN for scale 255. fp8_pb_wo: code * scale of its
    block of 128x128. int4_g128 and int8_g128, from `weight_packed`: code * scale of its 128 columns.
    """
    if format in _INTEGER_BITS:
        return _integers(tensors["weight_packed"], tensors["weight_scale"].float(), _INTEGER_BITS[format])
    weight, scale = tensors["weight"], tensors["weight_scale"].float()
    if format is Format.FP8_PB_WO:
        rows, columns = weight.shape
        blocks = scale.reshape(-(-rows // 128), columns // 128)
        return weight.float() * blocks.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)
    if format is Format.MXFP8:
        blocks = weight.float().reshape(*scale.shape, -1)
        return (blocks * e8m0(tensors["weight_scale"]).unsqueeze(-1)).reshape(weight.shape)
    if format is Format.FP8:
        return weight.float() * scale.reshape(())
    if format is Format.FP8_PC_PT:
        return weight.float() * scale.reshape(-1, 1)
    if format in (Format.NVFP4, Format.W4A16_NVFP4):
        values = torch.tensor(_E2M1)[torch.stack([weight & 0x0F, weight >> 4], dim=-1).long()]
        per_block = scale * tensors["weight_scale_2"].float()
        rows = weight.shape[0]
        return (values.reshape(rows, scale.shape[1], -1) * per_block.unsqueeze(-1)).reshape(rows, -1)
    raise ValueError(f"no dequantization for {format}")


def e8m0(codes: torch.Tensor) -> torch.Tensor:
    """The powers of two, fp32, that E8M0 codes (uint8) stand for; 255 is NaN (OCP microscaling formats 1.0)."""
    return torch.where(codes == 255, torch.nan, torch.exp2(codes.float() - 127))


def _integers(words: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes lie in int32 words, the first in the lowest bits, each with half of its range added."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    codes = (words.unsqueeze(-1) >> shifts & (2**bits - 1)) - 2 ** (bits - 1)
    rows, groups = scale.shape
    weight: torch.Tensor = (codes.reshape(rows, groups, -1) * scale.unsqueeze(-1)).reshape(rows, -1)
    return weight
