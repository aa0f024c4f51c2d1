"""Stored tensors back to numbers, in plain torch. Shares nothing with the code that packs."""

from collections.abc import Mapping

import torch

from draftmill.formats import Format

# OCP microscaling formats 1.0, table 5: sign, two exponent bits, one mantissa bit.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def dequantize(format: Format, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The weight [out, in] in fp32, from the stored tensors by suffix: `weight`, `weight_scale`, `weight_scale_2`.

    fp8: code * scale. fp8_pc_pt: code * scale of its row. nvfp4 kinds: code * (block scale * weight_scale_2), the
    products in fp32 in that order. mxfp8: code * 2^(scale - 127), NaN for scale 255.
    """
    weight, scale = tensors["weight"], tensors["weight_scale"].float()
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
