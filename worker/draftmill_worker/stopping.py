"""How a job hears that its worker stops."""

import mmap
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopping:
    """Whether this worker stops: SIGTERM to Celery's main process, or to the child itself while it has a job.

    To be made before the pool forks: its children inherit the page, one byte that the main process sets.
    """

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 1)
        self._told = False

    def __call__(self) -> bool:
        return self._told or self._page[0] != 0

    def begin(self) -> None:
        """In the main process: tell all its children."""
        self._page[0] = 1

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """A SIGTERM that arrives within ends the process only afterwards: the job is to be handed back first."""
        before = signal.signal(signal.SIGTERM, self._hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
            if self._told:
                signal.raise_signal(signal.SIGTERM)

    def _hear(self, _: int, __: FrameType | None) -> None:
        self._told = True
