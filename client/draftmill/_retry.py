"""When a call may be sent again, and after how long."""

import random
from dataclasses import dataclass, replace
from typing import Any

import httpx

from draftmill._calls import Call

# The request never left, whatever it was.
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_BUSY = frozenset({429, 502, 503})


def busy(response: httpx.Response) -> bool:
    """Whether the answer says: later."""
    return response.status_code in _BUSY


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter, in seconds."""

    attempts: int = 4
    first: float = 0.2
    longest: float = 5.0

    def for_streams(self) -> "RetryPolicy":
        """More patient: a stream may outlive several restarts of the service."""
        return replace(self, attempts=self.attempts * 2 + 2)

    def pause(self, failures: int) -> float:
        """How long to wait after this many failures in a row (at least one)."""
        return min(self.longest, self.first * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.0)  # noqa: S311

    def after_error(self, call: Call[Any], error: httpx.TransportError, failures: int) -> float | None:
        """Seconds until the next try, or None when the error stands."""
        if failures >= self.attempts or not (call.repeatable or isinstance(error, _UNSENT)):
            return None
        return self.pause(failures)

    def after_response(self, call: Call[Any], response: httpx.Response, failures: int) -> float | None:
        """Seconds until the next try, or None when the answer stands. Honours a Retry-After in seconds."""
        if not busy(response) or failures >= self.attempts or not call.repeatable:
            return None
        wanted = response.headers.get("retry-after", "")
        return min(float(wanted), 60.0) if wanted.isdigit() else self.pause(failures)
