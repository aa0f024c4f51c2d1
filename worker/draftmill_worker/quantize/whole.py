"""Weight files that hold nothing to quantize: linked where that is safe, copied otherwise, byte for byte."""

import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from draftmill.plans import UntouchedFile
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.headers import read_header
from draftmill_worker.quantize.pool import WorkPool, spans
from draftmill_worker.quantize.writer import allocate

CHUNK_BYTES = 16 << 20
# Small enough to stay in a core's cache.
BUFFER_BYTES = 1 << 18
NOT_ASKED = "its source may be written to"
_UNLINKABLE = {
    errno.EXDEV: "it lies on another file system",
    errno.EPERM: "the system does not let this user link it",
    errno.EMLINK: "it has too many names",
}


def check(source: Path, file: UntouchedFile) -> list[Offender]:
    """What the source holds that the plan did not count."""
    tensors = read_header(source / file.file, file.file)
    found = (len(tensors), sum(tensor.nbytes for tensor in tensors.values()))
    if found == (file.tensors, file.nbytes):
        return []
    message = f"planned {file.tensors} tensors of {file.nbytes} bytes, found {found[0]} of {found[1]}"
    return [Offender(where=file.file, message=message)]


class WholeFile:
    """A file of the source under its own name in `out`. It is removed again unless `finish` was reached.

    Raises FileExistsError when the file exists, and the problem `disk-budget` when a copy does not fit on the disk.
    """

    def __init__(self, source: Path, name: str, out: Path, *, link: bool, fsync: bool) -> None:
        # The file itself: a link to a link would dangle elsewhere.
        self._origin = Path(os.path.realpath(source / name))
        self._place = out / name
        self._fsync = fsync
        self._fd: int | None = None
        self._finished = False
        self.copied = self._linked() if link else NOT_ASKED
        """Why it is a copy; empty for a link."""

    def _linked(self) -> str:
        try:
            os.link(self._origin, self._place)
        except OSError as error:
            if error.errno not in _UNLINKABLE:
                raise
            return _UNLINKABLE[error.errno]
        return ""

    def __enter__(self) -> Self:
        if self.copied:
            self._fd = os.open(self._place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.fchmod(self._fd, 0o644)
                allocate(self._fd, self._origin.stat().st_size, self._place.name)
            except BaseException:
                self._discard()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._finished:
            self._discard()

    @property
    def nbytes(self) -> int:
        """Bytes to copy."""
        return self._origin.stat().st_size if self.copied else 0

    def fill(self, pool: WorkPool) -> None:
        """Hands the copying to the pool; a link needs none."""
        for first, last in spans(self.nbytes, CHUNK_BYTES):
            pool.submit(last - first, self._copy, first, last)

    def _copy(self, first: int, last: int) -> None:
        if self._fd is None:
            raise ValueError("the file is not open")
        buffer = memoryview(bytearray(min(last - first, BUFFER_BYTES)))
        with self._origin.open("rb", buffering=0) as reader:
            while first < last:
                count = os.preadv(reader.fileno(), [buffer[: last - first]], first)
                if not count:
                    raise ProblemError("source-changed", f"{self._place.name} became shorter while it was read")
                written = os.pwrite(self._fd, buffer[:count], first)
                first += written

    def finish(self) -> None:
        if self._fd is not None:
            if self._fsync:
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = None
        self._finished = True

    def _discard(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._place.unlink(missing_ok=True)
