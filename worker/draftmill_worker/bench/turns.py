"""Engines of one machine take turns: two at once would disturb each other's times, and may not fit its memory."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftmill_worker.stage import Reporter


@contextmanager
def turn(data_dir: Path, report: Reporter) -> Iterator[None]:
    """Wait for the turn among the workers of this machine that share the data directory.

    The kernel ends the turn of a process that dies; its engine dies with it.
    """
    folder = data_dir / "cache"
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / f"engine-{socket.gethostname()}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report.log("info", "waiting for another engine on this machine")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
