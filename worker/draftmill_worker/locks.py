"""One process at a time, by a file that is locked. The kernel lets go when the holder dies."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, waiting: Callable[[], object] | None = None) -> Iterator[None]:
    """Hold the lock while the context lasts; `waiting` is called once where somebody else has it.

    The holder removes the lock's file while it still holds the lock, so that none piles up.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _lock(path, waiting)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path, waiting: Callable[[], object] | None) -> int:
    """Descriptor of the locked file that has the name `path`."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting is not None:
                    waiting()
                    waiting = None
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # What was waited for may have lost its name to the last holder: such a lock keeps nobody out.
            if _has_name(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _has_name(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
