"""Watching by asking again and again: the state that both clients share."""

from draftmill._retry import RetryPolicy
from draftmill._watch import Away, may_pass
from draftmill.batches import Batch
from draftmill.errors import DraftmillError
from draftmill.problems import ProblemError

EVERY_SECONDS = 1.0


class Polling:
    """What was seen last, and how often nobody answered since."""

    def __init__(self, policy: RetryPolicy, every: float, away: Away | None) -> None:
        self._policy = policy
        self._every = every
        self._away = away
        self._last: Batch | None = None
        self._failures = 0
        self.pause = every
        """Seconds to wait before the next look."""

    @property
    def over(self) -> bool:
        return self._last is not None and self._last.done

    def changed(self, found: Batch) -> bool:
        """Whether this is not what was seen last."""
        changed = found != self._last
        self._last, self._failures, self.pause = found, 0, self._every
        return changed

    def lost(self, error: DraftmillError) -> None:
        """Raises the error when it will not pass, or came too often in a row."""
        self._failures += 1
        if not may_pass(error) or self._failures > self._policy.attempts:
            raise error
        if self._failures == 1 and self._away is not None:
            self._away(error.problem.title if isinstance(error, ProblemError) else str(error))
        self.pause = self._policy.pause(self._failures)
