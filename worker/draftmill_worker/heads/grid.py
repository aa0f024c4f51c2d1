"""Symmetric integer grids of 4 or 8 bits: a scale per group of columns, and the codes under it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from draftmill_worker.quantize.formats.pack_quantized import GROUP

SHRINKS = tuple(1.0 - 0.02 * step for step in range(21))
"""Fractions of a group's largest magnitude that a clipped scale is chosen from: 1.00 down to 0.60."""
CLIP_NORM = 2.4
"""Exponent of the error a clipped scale minimises, as GPTQ's and compressed-tensors' mse observers have it."""


@dataclass(frozen=True)
class Grid:
    bits: int
    clip: bool = False
    """Choose each scale by least error instead of from the largest magnitude."""

    @property
    def low(self) -> int:
        return -(1 << (self.bits - 1))

    @property
    def high(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def scales(self, groups: Tensor) -> Tensor:
        """fp32 [1, rows] of `groups` fp32 [GROUP, rows], each a number that bf16 holds.

        From the largest magnitude: amax / ((2^bits - 1) / 2), as compressed-tensors 0.17's `calculate_qparams`. A group
        of zeros has scale 1 and codes 0.
        """
        amax = groups.abs().amax(0, keepdim=True)
        full = _stored(amax / ((self.high - self.low) / 2))
        return self._clipped(groups, full) if self.clip else full

    def codes(self, values: Tensor, scales: Tensor) -> Tensor:
        """fp32 integers: values / scales, rounded half to even and clamped."""
        return torch.round(values / scales).clamp_(self.low, self.high)

    def _clipped(self, groups: Tensor, full: Tensor) -> Tensor:
        best, least = full, torch.full_like(full, float("inf"))
        for shrink in SHRINKS:
            scales = _stored(full * shrink)
            error = (self.codes(groups, scales).mul_(scales).sub_(groups)).abs_().pow_(CLIP_NORM).sum(0, keepdim=True)
            best, least = torch.where(error < least, scales, best), torch.minimum(error, least)
        return best


def _stored(scales: Tensor) -> Tensor:
    rounded = scales.bfloat16().float()
    return torch.where(rounded > 0, rounded, torch.ones_like(rounded))


@dataclass(frozen=True)
class Quantized:
    """Some rows of a head."""

    codes: Tensor
    """int8 [rows, columns]."""
    scales: Tensor
    """bf16 [rows, columns / GROUP]."""

    def dequantized(self) -> Tensor:
        """fp32 [rows, columns]: code * scale."""
        rows, columns = self.codes.shape
        grouped = self.codes.float().view(rows, columns // GROUP, GROUP)
        return (grouped * self.scales.float().unsqueeze(-1)).view(rows, columns)


def round_to_nearest(weight: Tensor, grid: Grid) -> Quantized:
    """Each element by itself. `weight` floating [rows, columns], columns a multiple of GROUP."""
    rows, columns = weight.shape
    groups = weight.float().view(rows * columns // GROUP, GROUP).T
    scales = grid.scales(groups)
    codes = grid.codes(groups, scales)
    return Quantized(
        codes.T.to(torch.int8).reshape(rows, columns), scales.view(rows, columns // GROUP).to(torch.bfloat16)
    )
