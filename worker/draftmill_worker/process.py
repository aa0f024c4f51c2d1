"""Processes: dying with the parent, and killing everything that a process has started.

`psutil.Process` is a process by pid and start time, so that a pid that came round again is not killed by mistake.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterable

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent`, the process that started it, dies.

    Linux means the parent's thread: start such children from a thread that lives as long as the process does.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It died before the call.
        os.kill(os.getpid(), signal.SIGKILL)


def become_subreaper() -> None:
    """Adopt the orphans among this process's descendants, whatever sessions they made for themselves."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def find(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def alive(process: psutil.Process) -> bool:
    """False as well for a zombie: it runs no more and holds nothing."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def kill_tree(root: psutil.Process, timeout: float) -> bool:
    """Kill a process and its descendants; True when none is left after at most `timeout` seconds."""
    deadline = time.monotonic() + timeout
    doomed = {root}
    while True:
        doomed.update(descendants(root))
        _kill(doomed)
        doomed = {process for process in doomed if alive(process)}
        if not doomed or time.monotonic() > deadline:
            return not doomed
        time.sleep(0.01)


def reap_children(timeout: float) -> int:
    """Kill and reap every child of this process and what they leave behind; how many had to be killed.

    For a subreaper: whatever a dead child had started is by then a child of its own. TimeoutError when some do not
    die, as in uninterruptible sleep.
    """
    deadline = time.monotonic() + timeout
    killed: set[psutil.Process] = set()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return len(killed)
        if pid:
            continue
        living = [process for process in descendants(psutil.Process()) if alive(process)]
        _kill(living)
        killed.update(living)
        if time.monotonic() > deadline:
            raise TimeoutError("child processes that do not die")
        time.sleep(0.002)
