"""The bytes of one file that have arrived so far, hashed as they come."""

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from draftmill_worker.pull.listing import ListedFile

_CHUNK = 4 << 20


class Part:
    """A file that grows at its end. What an earlier process left in it counts, after it is hashed again."""

    def __init__(self, path: Path, file: ListedFile) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._begin()
        if os.fstat(self._descriptor).st_size > file.size:
            self.restart()
        while chunk := os.read(self._descriptor, _CHUNK):
            self._count(chunk)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    @property
    def complete(self) -> bool:
        return self.size == self._file.size

    def append(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self._count(chunk)

    def restart(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._begin()

    def sha256(self) -> str | None:
        """SHA-256 of the bytes, or None when they are not the ones that were listed."""
        found = self._sha256.hexdigest() if self._file.algorithm == "sha256" else self._git.hexdigest()
        return self._sha256.hexdigest() if self.complete and found == self._file.digest else None

    def _begin(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(f"blob {self._file.size}\0".encode(), usedforsecurity=False)

    def _count(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self._sha256.update(chunk)
        if self._file.algorithm == "git-sha1":
            self._git.update(chunk)
