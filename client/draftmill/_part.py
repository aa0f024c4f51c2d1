"""One artifact on its way to its place: resumable, hashed as it arrives, visible under its name only when whole."""

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from draftmill.errors import DownloadError
from draftmill.reports import ManifestFile

_BLOCK = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")


@contextmanager
def storing(file: ManifestFile) -> Iterator[None]:
    """Turns the operating system's errors (no space, no permission) into DownloadError."""
    try:
        yield
    except OSError as error:
        raise DownloadError(f"cannot store {file.path}: {error}") from error


def matches(path: Path, file: ManifestFile) -> bool:
    """Whether the file at `path` is `file`, by size and then by hash."""
    try:
        if path.is_symlink() or path.stat().st_size != file.size:
            return False
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256
    except FileNotFoundError:
        return False


class Part:
    """A `.part` file named after the hash it must get, so that a part of another variant is never continued."""

    def __init__(self, place: Path, file: ManifestFile) -> None:
        """Opens and locks the part and hashes what it holds. Raises DownloadError when another download has it."""
        self.file = file
        self._place = place
        self._path = place.with_name(f"{place.name}.{file.sha256[:12]}.part")
        place.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._fd)
            raise DownloadError(f"another download is writing {self._path}") from error
        self.rewind()
        if os.fstat(self._fd).st_size <= file.size:
            while block := os.read(self._fd, _BLOCK):
                self._hash.update(block)
                self.offset += len(block)

    def close(self) -> None:
        os.close(self._fd)

    def rewind(self) -> None:
        """Back to the first byte; what the part holds is overwritten by what comes."""
        self._hash = hashlib.sha256()
        self.offset = 0
        os.lseek(self._fd, 0, os.SEEK_SET)

    @property
    def whole(self) -> bool:
        return self.offset == self.file.size

    def accept(self, response: httpx.Response) -> None:
        """Makes ready for the body of a 200 (from the first byte) or 206 (from the offset) answer."""
        if response.status_code == 206:
            sent = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
            if sent is None or int(sent[1]) != self.offset:
                got = response.headers.get("content-range")
                raise DownloadError(f"{self.file.path}: asked for bytes from {self.offset}, got {got!r}")
        elif self.offset:
            self.rewind()
        os.ftruncate(self._fd, self.offset)

    def write(self, block: bytes) -> None:
        if self.offset + len(block) > self.file.size:
            self._path.unlink()
            raise DownloadError(f"{self.file.path}: more than the {self.file.size} bytes of the manifest arrived")
        view = memoryview(block)
        while view:
            view = view[os.write(self._fd, view) :]
        self._hash.update(block)
        self.offset += len(block)

    def finish(self) -> bool:
        """Moves the whole part to its place and returns True; empties it and returns False when its hash is wrong."""
        if self._hash.hexdigest() != self.file.sha256:
            self.rewind()
            os.ftruncate(self._fd, 0)
            return False
        os.fsync(self._fd)
        self._path.replace(self._place)
        return True

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)
