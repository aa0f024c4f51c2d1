"""NVFP4 block scales of least squared error, in plain torch, from their definition in docs/adr/0085.

Not the quantizer's code: rounding here is arithmetic on quotients, there comparison with thresholds. Blocks are columns
of [16, blocks], so that what is done per block runs along contiguous memory.
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
    blocks = columns_of(rows)
    first = plain.view(torch.uint8).flatten().to(torch.int16)
    found, least = first.clone(), block_errors(blocks, plain.flatten().float() * second)
    largest = blocks.amax(dim=0).double()
    for offsets in (UPWARDS, DOWNWARDS):
        tried = least > 0
        for offset in offsets:
            code = first + offset
            unit = code.clamp(1, LARGEST).to(torch.uint8).view(torch.float8_e4m3fn).float() * second
            tried &= (code >= 1) & (code <= LARGEST)
            if offset < 0:
                # What the largest magnitude loses by saturating, the block loses, and more with each smaller scale.
                tried &= (largest - (E2M1_MAX * unit).double()).clamp(min=0).square() < least
            if not tried.any():
                break
            _improve(blocks, unit, code, tried, (found, least))
    return found.to(torch.uint8).view(torch.float8_e4m3fn).reshape(plain.shape)


def _improve(
    blocks: "torch.Tensor",
    unit: "torch.Tensor",
    code: "torch.Tensor",
    tried: "torch.Tensor",
    best: "tuple[torch.Tensor, torch.Tensor]",
) -> None:
    """Puts `code` and its error in the place of what was `best`, (code, error), for the blocks `tried` and better."""
    found, least = best
    # Picking out blocks costs as much as computing them.
    at = slice(None) if 2 * int(tried.sum()) > len(tried) else tried.nonzero().squeeze(1)
    error = block_errors(blocks[:, at], unit[at])
    better = tried[at] & (error < least[at])
    least[at] = error.where(better, least[at])
    found[at] = code[at].where(better, found[at])


def columns_of(rows: "torch.Tensor") -> "torch.Tensor":
    """fp32 [16, blocks]: the magnitudes of each block of a weight's rows as a column."""
    return rows.float().abs().reshape(-1, BLOCK).t().contiguous()


def block_errors(blocks: "torch.Tensor", unit: "torch.Tensor") -> "torch.Tensor":
    """float64 [blocks]: squared error of magnitudes [16, blocks] rounded to E2M1 codes of `unit` each, by halves."""
    error = nearest(blocks / unit).mul_(unit).double().sub_(blocks).square_()
    while len(error) > 1:
        error = error[: len(error) // 2] + error[len(error) // 2 :]
    return error[0]


def nearest(quotients: "torch.Tensor") -> "torch.Tensor":
    """E2M1's values nearest to magnitudes in units of their scale, ties to even. A quotient by zero counts as the
    largest.

    The values lie 2^k / 2 apart from 2^k on, and 0.5 apart below 2.
    """
    import torch

    bounded = torch.fmin(quotients, torch.tensor(E2M1_MAX))
    apart = (bounded.view(torch.int32) & 0x7F800000).view(torch.float32).mul_(0.5).clamp_(min=0.5)
    return bounded.div_(apart).round_().mul_(apart)
