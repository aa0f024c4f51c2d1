"""What Linux offers to a process that must leave nothing behind."""

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded before any fork: a child that is about to exec must not load libraries.
_LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def die_with_parent(parent: int) -> None:
    """In a child before exec: the kernel kills it when the thread that forked it dies, however that happens."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before the kernel was asked.
        os._exit(1)


def adopt_orphans() -> None:
    """Descendants whose parents die become children of this process, which can then end them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Process ids of this process' children, zombies too."""
    me = os.getpid()
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command's name, in parentheses, may hold spaces and parentheses itself.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == me:
            found.append(int(stat.parent.name))
    return found
