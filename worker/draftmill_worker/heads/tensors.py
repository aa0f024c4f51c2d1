"""Pieces of stored tensors as torch sees them, read into memory of their own: nothing grows with the tensor."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from draftmill_worker.checkpoint.headers import TensorInfo

DTYPES: dict[str, torch.dtype] = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
FLOATS = ("BF16", "F16", "F32")
CHUNK = 1 << 24
"""Elements of a matrix that are worked on together."""


def read_rows(path: Path, info: TensorInfo, first: int, last: int) -> Tensor:
    """Rows [first, last) of a tensor with at least one dimension."""
    width = info.nbytes // info.shape[0] if info.shape[0] else 0
    raw = np.fromfile(path, np.uint8, (last - first) * width, offset=info.start + first * width)
    return torch.from_numpy(raw).view(DTYPES[info.dtype]).view(last - first, *info.shape[1:])


def read(path: Path, info: TensorInfo) -> Tensor:
    return read_rows(path, info, 0, info.shape[0])


def raw(tensor: Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """A contiguous tensor's bytes, flat."""
    found: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return found


def steps(rows: int, columns: int) -> list[tuple[int, int]]:
    """Spans of rows with about CHUNK elements each."""
    step = max(1, CHUNK // max(columns, 1))
    return [(first, min(first + step, rows)) for first in range(0, rows, step)]
