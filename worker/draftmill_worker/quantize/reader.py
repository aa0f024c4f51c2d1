"""Weight files read through a mapping: no tensor is ever held in anonymous memory."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftmill_worker.checkpoint.headers import DTYPE_BYTES, TensorInfo, read_header
from draftmill_worker.quantize.kernels.rows import STORED


class WeightReader:
    """One safetensors file. Arrays and views stay valid for as long as they are referenced."""

    def __init__(self, path: Path, name: str) -> None:
        self.tensors: dict[str, TensorInfo] = read_header(path, name)
        with path.open("rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)

    def elements(self, info: TensorInfo, first: int, last: int) -> NDArray[Any]:
        """Elements [first, last) of a floating tensor, flat and read-only."""
        array = np.frombuffer(self._map, STORED[info.dtype], last - first, info.start + first * itemsize(info))
        # The format does not promise alignment, and the loops are compiled for aligned arrays.
        return array if array.flags.aligned else array.copy()

    def raw(self, start: int, end: int) -> memoryview:
        return memoryview(self._map)[start:end]

    def release(self, start: int, end: int) -> None:
        """Drops the pages of a span from this process; the page cache keeps them."""
        aligned = start - start % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, aligned, end - aligned)


def itemsize(info: TensorInfo) -> int:
    """Bytes of one element."""
    return DTYPE_BYTES[info.dtype]
