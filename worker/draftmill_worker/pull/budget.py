"""Whether a source fits, asked before its first byte is fetched."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftmill.problems import Offender, ProblemError
from draftmill_worker.pull.settings import Limits


def check_budget(sources_dir: Path, wanted: int, present: int, limits: Limits) -> None:
    """Raises `disk-budget` when `wanted` bytes, `present` of which are there from an earlier try, do not fit.

    Two bounds: what is free on the volume, and what the operator grants to everything under `sources_dir`.
    """
    missing = max(0, wanted - present)
    sources_dir.mkdir(parents=True, exist_ok=True)
    status = os.statvfs(sources_dir)
    free = status.f_bavail * status.f_frsize - limits.reserve_bytes
    if missing > free:
        raise _too_much(missing, max(0, free), f"free on the volume beyond a reserve of {limits.reserve_bytes}")
    if limits.disk_budget_bytes is not None:
        left = limits.disk_budget_bytes - used_bytes(sources_dir)
        if missing > left:
            raise _too_much(missing, max(0, left), f"left of a disk budget of {limits.disk_budget_bytes}")


@contextmanager
def full_disk(what: str) -> Iterator[None]:
    """A disk or quota that fills up meanwhile becomes `disk-budget`."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise ProblemError("disk-budget", f"{what}: the disk is full") from error
        raise


def used_bytes(folder: Path) -> int:
    """Bytes of the files under `folder`; several hard links to one file count once."""
    sizes: dict[tuple[int, int], int] = {}
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                status = os.lstat(os.path.join(root, name))  # noqa: PTH118 - hot, and no Path is needed
            except FileNotFoundError:  # another pull renamed its file
                continue
            sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


def _too_much(missing: int, left: int, which: str) -> ProblemError:
    message = f"{missing} bytes are to be stored; {left} bytes are {which}"
    return ProblemError("disk-budget", message, [Offender(where="source", message=message, value=missing)])
