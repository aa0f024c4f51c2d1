"""Weight files read through a mapping, or in small pieces: no tensor is ever held in anonymous memory."""

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.headers import DTYPE_BYTES, TensorInfo, read_header
from draftmill_worker.quantize.kernels.rows import STORED


class WeightReader:
    """One safetensors file. Arrays stay valid for as long as they are referenced."""

    def __init__(self, path: Path, name: str) -> None:
        self.tensors: dict[str, TensorInfo] = read_header(path, name)
        self._name = name
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def elements(self, info: TensorInfo, first: int, last: int) -> NDArray[Any]:
        """Elements [first, last) of a floating tensor, flat and read-only."""
        array = np.empty(last - first, STORED[info.dtype])
        self.read(info.start + first * array.itemsize, array.view(np.uint8).data)
        array.flags.writeable = False
        return array

    def read(self, start: int, buffer: memoryview) -> None:
        """Fills `buffer` with the file's bytes from `start` on. Raises `source-changed` where the file ends before."""
        view = buffer
        while view:
            count = os.preadv(self._fd, [view], start)
            if not count:
                raise ProblemError("source-changed", f"{self._name} ends before its header says it does")
            view, start = view[count:], start + count


def itemsize(info: TensorInfo) -> int:
    """Bytes of one element."""
    return DTYPE_BYTES[info.dtype]
