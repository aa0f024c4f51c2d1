"""Hashes of files, as manifests and the Hub record them."""

import hashlib
from collections.abc import Callable
from pathlib import Path

CHUNK = 4 << 20


def sha256_file(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """SHA-256 of the file's bytes, 64 hex digits. `progress` gets the number of bytes after each chunk."""
    return _hash(hashlib.sha256(), path, progress)


def git_sha1_file(path: Path) -> str:
    """Git's blob id, 40 hex digits: the Hub's ETag of files outside LFS."""
    size = path.stat().st_size
    digest = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    return _hash(digest, path, None)


def _hash(digest: "hashlib._Hash", path: Path, progress: Callable[[int], None] | None) -> str:
    with path.open("rb", buffering=0) as stream:
        buffer = bytearray(CHUNK)
        view = memoryview(buffer)
        while count := stream.readinto(view):
            digest.update(view[:count])
            if progress is not None:
                progress(count)
    return digest.hexdigest()
