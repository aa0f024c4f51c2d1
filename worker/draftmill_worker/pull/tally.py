"""Bytes of several files that are brought at the same time, reported as one sum."""

import threading

from draftmill_worker.pull.store import Progress


class Tally:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._done = 0
        self._progress = progress

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._progress is not None:
                self._progress(self._done, self._total)
