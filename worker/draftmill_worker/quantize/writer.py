"""Weight files written at known offsets, by any number of threads."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from draftmill.plans import OutputTensor
from draftmill.problems import Offender, ProblemError
from draftmill_worker.quantize.layout import layout
from draftmill_worker.quantize.writeback import start_writeback

# Smaller pieces (scales) are left to fsync: each start is a request to the disk.
_WORTH_STARTING = 1 << 18


class WeightWriter:
    """A new safetensors file, allocated in full when opened. It is removed again unless `finish` was reached.

    Raises FileExistsError when the file exists, and the problem `disk-budget` when it does not fit on the disk.
    """

    def __init__(self, path: Path, tensors: Iterable[OutputTensor], *, fsync: bool) -> None:
        self._layout = layout(tensors)
        self._fsync = fsync
        self._path = path
        self._finished = False
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> Self:
        try:
            os.fchmod(self._fd, 0o644)
            allocate(self._fd, self._layout.size, self._path.name)
        except BaseException:
            self._discard()
            raise
        self._write(self._layout.header, 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._finished:
            self._discard()

    def put(self, tensor: str, offset: int, data: NDArray[Any] | memoryview) -> None:
        """Writes `data`, C-contiguous, `offset` bytes into `tensor`."""
        raw = data.reshape(-1).view(np.uint8).data if isinstance(data, np.ndarray) else data
        start = self._layout.starts[tensor] + offset
        self._write(raw, start)
        if self._fsync and len(raw) >= _WORTH_STARTING:
            start_writeback(self._fd, start, len(raw))

    def finish(self) -> None:
        """Closes the file; with `fsync`, once the disk has every byte of it."""
        if self._fsync:
            os.fsync(self._fd)
        os.close(self._fd)
        self._finished = True

    def _write(self, data: bytes | memoryview, offset: int) -> None:
        # Written, not mapped: faulting a mapping's pages in one by one costs three times a write's time.
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, offset)
            view, offset = view[written:], offset + written

    def _discard(self) -> None:
        os.close(self._fd)
        self._path.unlink(missing_ok=True)


def allocate(fd: int, size: int, name: str) -> None:
    """Raises the problem `disk-budget` when `size` bytes do not fit on the disk."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ProblemError(
            "disk-budget", f"{name} does not fit", [Offender(where=name, message=f"needs {size} bytes")]
        ) from error
