"""One supervised process: how it starts, how it is stopped, when it may start again."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from draftmill_service.up.kernel import die_with_parent

# A process that ran this long had started well; its next death counts as the first again.
_SETTLED_SECONDS = 20.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 15.0
_LOG_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    arguments: Sequence[str]
    environ: Mapping[str, str]
    grace_seconds: float
    """How long it may take to stop after SIGTERM."""


class Child:
    """Runs in a session of its own: Ctrl-C reaches it only through the supervisor. Its output goes to a log file."""

    def __init__(self, command: Command, logs: Path) -> None:
        self.command = command
        self.log = logs / f"{command.name}.log"
        self.pid: int | None = None
        self.deaths = 0
        """In a row, without having settled."""
        self._started = 0.0
        self._again = 0.0

    def start(self) -> None:
        _rotate(self.log)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.command.arguments,
                env=dict(self.command.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Safe: the supervisor has one thread.
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509
            )
        self.pid = process.pid
        # The supervisor reaps with waitpid(-1), not through Popen.
        process.returncode = 0
        self._started = time.monotonic()

    @property
    def due(self) -> bool:
        return self.pid is None and time.monotonic() >= self._again

    def died(self) -> float:
        """Takes note that it is gone, and gives the seconds until it may start again."""
        self.pid = None
        settled = time.monotonic() - self._started > _SETTLED_SECONDS
        self.deaths = 1 if settled else self.deaths + 1
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** (self.deaths - 1))
        self._again = time.monotonic() + pause
        return pause

    def signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def last_words(self, lines: int = 15) -> str:
        """The end of its log."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 16384))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
