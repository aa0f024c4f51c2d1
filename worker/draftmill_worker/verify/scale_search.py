"""NVFP4 block scales of least squared error, in plain torch, from their definition in docs/adr/0085.

Not the quantizer's code: rounding here is arithmetic on quotients, there comparison with thresholds.
"""

from typing import TYPE_CHECKING

from draftmill.formats import Format
from draftmill_worker.verify.reference import BLOCK, E2M1_MAX, block_scales, tensor_scale

if TYPE_CHECKING:
    import torch

UPWARDS = range(1, 8)
"""Codes above plain max's that are tried; 8 more are twice the scale."""
DOWNWARDS = range(-1, -126, -1)
LARGEST = 126
"""E4M3's code of 448."""


def searched_scales(format: Format, rows: "torch.Tensor", top: "torch.Tensor") -> "torch.Tensor":
    """E4M3 [rows, columns/16]. `top` is the tensor's or its group's amax; plain max wins ties, then the first."""
    import torch

    second, plain = tensor_scale(format, top), block_scales(format, rows, top)
    blocks = rows.float().abs().reshape(-1, BLOCK)
    found = plain.view(torch.uint8).flatten().to(torch.int16)
    first, least = found.clone(), block_errors(blocks, plain.flatten().float() * second)
    largest = blocks.amax(dim=1)
    for offsets in (UPWARDS, DOWNWARDS):
        open_ = least > 0
        for offset in offsets:
            open_ = open_ & (first + offset >= 1) & (first + offset <= LARGEST)
            at = open_.nonzero().squeeze(1)
            code = first[at] + offset
            unit = code.to(torch.uint8).view(torch.float8_e4m3fn).float() * second
            # What the largest magnitude loses by saturating, the block loses, and more with each smaller scale.
            lost = (largest[at].double() - (E2M1_MAX * unit).double()).clamp(min=0).square()
            hopeless = (lost >= least[at]) & (offset < 0)
            open_[at[hopeless]] = False
            at, code, unit = at[~hopeless], code[~hopeless], unit[~hopeless]
            if not len(at):
                break
            error = block_errors(blocks[at], unit)
            better = error < least[at]
            least[at[better]], found[at[better]] = error[better], code[better]
    return found.to(torch.uint8).view(torch.float8_e4m3fn).reshape(plain.shape)


def block_errors(blocks: "torch.Tensor", unit: "torch.Tensor") -> "torch.Tensor":
    """float64 [blocks]: squared error of magnitudes [blocks, 16] rounded to E2M1 codes of `unit` each, by halves."""
    error = (blocks.double() - (nearest(blocks / unit.unsqueeze(1)) * unit.unsqueeze(1)).double()).square()
    while error.shape[1] > 1:
        error = error[:, : error.shape[1] // 2] + error[:, error.shape[1] // 2 :]
    return error[:, 0]


def nearest(quotients: "torch.Tensor") -> "torch.Tensor":
    """E2M1's values nearest to magnitudes in units of their scale, ties to even: halves up to 2, ones up to 4, then 6.
    A quotient by zero counts as the largest."""
    import torch

    quotients = quotients.nan_to_num(nan=E2M1_MAX, posinf=E2M1_MAX)
    above = torch.where(quotients < 4, quotients.round(), (quotients / 2).round() * 2)
    return torch.where(quotients < 2, (quotients * 2).round() / 2, above).clamp(max=E2M1_MAX)
