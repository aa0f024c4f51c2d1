"""Failures that a later try may mend, and how long to go on trying."""

import random
import threading

from draftmill.problems import ProblemError
from draftmill_worker.pull.settings import HubSettings


class TransientError(Exception):
    """A failed try. `slug` and `detail` become the problem when tries run out; `after` is the server's Retry-After."""

    def __init__(self, slug: str, detail: str, after: float | None = None) -> None:
        super().__init__(f"{slug}: {detail}")
        self.slug = slug
        self.detail = detail
        self.after = after


class StoppedError(Exception):
    """Another part of the same pull failed; this one ends without a word of its own."""


class Patience:
    """Counts failures in a row and waits between them, within the bounds of the settings."""

    def __init__(self, settings: HubSettings, stop: threading.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._failures = 0
        self._waited = 0.0

    def progressed(self) -> None:
        self._failures = 0

    def wait(self, fault: TransientError) -> None:
        """Returns when it is time for the next try; raises ProblemError when there is to be none."""
        self._failures += 1
        if self._failures >= self._settings.tries:
            raise ProblemError(fault.slug, f"{fault.detail}; given up after {self._failures} tries") from fault
        pause = self._backoff() if fault.after is None else fault.after
        if self._waited + pause > self._settings.max_wait_seconds:
            allowed = f"at most {self._settings.max_wait_seconds:g} s are waited"
            raise ProblemError(
                fault.slug, f"{fault.detail}; the next try would be in {pause:g} s, {allowed}"
            ) from fault
        self._waited += pause
        if self._stop.wait(pause):
            raise StoppedError from fault

    def _backoff(self) -> float:
        pause: float = self._settings.backoff_seconds * 2 ** (self._failures - 1)
        # Spread out, so that several workers do not come back at once.
        return min(pause, self._settings.max_backoff_seconds) * random.uniform(0.75, 1.25)  # noqa: S311
