"""Keeps processes running until it is told to stop, then stops them in reverse order and leaves none behind."""

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Self

from draftmill_service.up import kernel
from draftmill_service.up.child import Child
from draftmill_service.up.errors import UpError

_TICK_SECONDS = 0.05
# A child that dies this often before it was ever ready is not going to be.
_START_DEATHS = 3

Say = Callable[[str], None]


class Supervisor:
    """Has one thread, takes SIGINT, SIGTERM and SIGHUP while it is entered, and adopts its descendants' orphans."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._children: list[Child] = []
        self._signals: list[int] = []
        self._taken: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        kernel.adopt_orphans()
        self._wake, write = socket.socketpair()
        self._write = write
        for end in (self._wake, write):
            end.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            self._taken[number] = signal.signal(number, self._took)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stop()
        finally:
            signal.set_wakeup_fd(self._wakeup)
            for number, handler in self._taken.items():
                signal.signal(number, handler)  # type: ignore[arg-type]
            self._wake.close()
            self._write.close()

    def _took(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number != signal.SIGCHLD:
            self._signals.append(number)

    def add(self, child: Child) -> None:
        child.start()
        self._children.append(child)

    def wait_for(self, what: str, ready: Callable[[], bool], child: Child, seconds: float) -> bool:
        """True once `ready()` is; False when told to stop meanwhile.

        Raises UpError with the end of the child's log when it keeps dying or is not ready in time.
        """
        deadline = time.monotonic() + seconds
        while not self._signals:
            if ready():
                return True
            if child.deaths >= _START_DEATHS or time.monotonic() > deadline:
                raise UpError(f"{what} does not start; the end of {child.log}:\n{child.last_words()}")
            self._step(_TICK_SECONDS)
        return False

    def run(self) -> None:
        """Until a signal says stop."""
        while not self._signals:
            waiting = any(child.pid is None for child in self._children)
            self._step(_TICK_SECONDS if waiting else 5.0)

    def _step(self, seconds: float) -> None:
        self._sleep(seconds)
        for child, status in self._reap():
            pause = child.died()
            self._say(f"{child.command.name} {_ending(status)}; starting it again in {pause:.1f} s (log: {child.log})")
            if child.deaths == 1 and os.WIFEXITED(status) and (words := child.last_words(2)):
                self._say(f"it said last:\n{words}")
            if child.deaths == _START_DEATHS:
                self._say(f"the end of its log:\n{child.last_words()}")
        for child in self._children:
            if child.due:
                child.start()

    def _sleep(self, seconds: float) -> None:
        if select.select([self._wake], [], [], seconds)[0]:
            with suppress(BlockingIOError):
                self._wake.recv(4096)

    def _reap(self) -> list[tuple[Child, int]]:
        """Children that ended, with their wait statuses. Adopted orphans are reaped in passing."""
        ended: list[tuple[Child, int]] = []
        known = {child.pid: child for child in self._children}
        while (pid := _ended()) is not None:
            if pid in known:
                # While it is a zombie, its group's number cannot be another's: end what is left of the group.
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            if pid in known:
                ended.append((known[pid], status))
        return ended

    @property
    def _urged(self) -> bool:
        """A signal came a second time, which means: now."""
        return len(set(self._signals)) < len(self._signals)

    def _stop(self) -> None:
        for child in reversed(self._children):
            child.signal(signal.SIGTERM)
            deadline = time.monotonic() + child.command.grace_seconds
            while child.pid is not None:
                if time.monotonic() > deadline or self._urged:
                    self._say(f"killing {child.command.name}, which does not stop")
                    child.signal(signal.SIGKILL)
                    deadline = float("inf")
                self._sleep(_TICK_SECONDS)
                for ended, _ in self._reap():
                    ended.died()
        self._end_orphans()

    def _end_orphans(self) -> None:
        while orphans := kernel.children():
            for pid in orphans:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._sleep(_TICK_SECONDS)
            self._reap()


def _ended() -> int | None:
    """A child that ended and is not reaped yet."""
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if info is None else info.si_pid


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
