"""The scratch folder of an attempt: there while a process holds its lock, removed afterwards by whoever comes first."""

import fcntl
import os
from pathlib import Path
from typing import Self

from draftmill_worker.files import remove_tree

LOCK = ".lock"


class Scratch:
    """jobs/<job>/<attempt>/scratch for the length of the context.

    The lock is the kernel's and goes with the process, so that a folder whose lock is free belongs to a dead attempt.
    """

    def __init__(self, attempt_folder: Path) -> None:
        self._folder = attempt_folder
        self._lock: int | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self._folder / "scratch").mkdir(exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        remove_tree(self._folder / "scratch")
        (self._folder / LOCK).unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)


def sweep(jobs: Path, job: str = "*") -> int:
    """Remove the scratch folders of dead attempts, of one job or of all; how many there were."""
    removed = 0
    for scratch in sorted(jobs.glob(f"{job}/*/scratch")):
        lock = os.open(scratch.parent / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            remove_tree(scratch)
            (scratch.parent / LOCK).unlink(missing_ok=True)
            removed += 1
        finally:
            os.close(lock)
    return removed
