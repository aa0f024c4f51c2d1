"""Loops over elements: numba on the CPU, torch where the tensors live on CUDA. Both give the same bytes."""

from draftmill_worker.quantize.kernels.rows import RowOps, Rows, row_ops

__all__ = ["RowOps", "Rows", "row_ops"]
