"""GPTQ of one matrix, some of its rows at a time: rows do not depend on each other.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022, algorithm 1,
with a scale chosen when its group is reached. The walk over columns is a recursion: each half's errors reach the other
half in one matrix product, so that memory stays at one copy of the rows and most of the work is in large products.
"""

import torch
from torch import Tensor

from draftmill_worker.heads.grid import Grid, Quantized
from draftmill_worker.quantize.formats.pack_quantized import GROUP

_LEAF = 16
"""Columns that are walked one by one."""


def gptq(weight: Tensor, factor: Tensor, grid: Grid) -> Quantized:
    """`weight` floating [rows, columns]; `factor` is `inverse_factor`'s, [columns, columns].

    Working memory is about rows * columns * 5 bytes. The same codes as ModelOpt's `gptq_blockwise_update` with blocks
    of GROUP and scales taken at the start of each, up to rounding in fp32.
    """
    return _Walk(weight, factor, grid).run()


class _Walk:
    def __init__(self, weight: Tensor, factor: Tensor, grid: Grid) -> None:
        rows, columns = weight.shape
        # Transposed: a column of the matrix is one run of memory. Turns, column by column, into scaled errors.
        self._left = weight.T.float().contiguous()
        self._factor = factor
        self._grid = grid
        self._codes = torch.empty(columns, rows, dtype=torch.int8)
        self._scales = torch.empty(columns // GROUP, rows, dtype=torch.bfloat16)

    def run(self) -> Quantized:
        self._groups(0, len(self._left))
        return Quantized(self._codes.T.contiguous(), self._scales.T.contiguous())

    def _groups(self, first: int, last: int) -> None:
        if last - first == GROUP:
            scales = self._grid.scales(self._left[first:last])
            self._scales[first // GROUP] = scales[0].to(torch.bfloat16)
            self._columns(first, last, scales)
            return
        middle = first + (last - first) // GROUP // 2 * GROUP
        self._groups(first, middle)
        self._carry(first, middle, last)
        self._groups(middle, last)

    def _columns(self, first: int, last: int, scales: Tensor) -> None:
        if last - first <= _LEAF:
            self._leaf(first, last, scales)
            return
        middle = (first + last) // 2
        self._columns(first, middle, scales)
        self._carry(first, middle, last)
        self._columns(middle, last, scales)

    def _carry(self, first: int, middle: int, last: int) -> None:
        """What columns [first, middle) left undone is made good in [middle, last)."""
        self._left[middle:last].addmm_(self._factor[first:middle, middle:last].T, self._left[first:middle], alpha=-1)

    def _leaf(self, first: int, last: int, scales: Tensor) -> None:
        for column in range(first, last):
            values = self._left[column : column + 1]
            codes = self._grid.codes(values, scales)
            self._codes[column] = codes[0].to(torch.int8)
            values.sub_(codes.mul_(scales)).div_(self._factor[column, column])
            if column + 1 < last:
                self._left[column + 1 : last].addr_(self._factor[column, column + 1 : last], values[0], alpha=-1)
