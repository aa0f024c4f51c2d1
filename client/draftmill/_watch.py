"""Following a job's event stream over lost connections: the state that both clients share."""

import time
from collections.abc import Callable

import httpx
from httpx_sse import ServerSentEvent
from pydantic import ValidationError

from draftmill import _calls
from draftmill._calls import Call
from draftmill._retry import RetryPolicy
from draftmill.errors import ProtocolError, TransportError
from draftmill.jobs import Job
from draftmill.problems import KINDS, ProblemError
from draftmill.reports import LEDGER_AWAY, Event, EventKind
from draftmill.states import DONE

# A stream that stayed open this long was no failure to connect, even when no event came.
_LASTED_SECONDS = 5.0

Away = Callable[[str], None]
"""Called once each time that no event can come for a while, with why."""


def may_pass(error: Exception) -> bool:
    """Whether following may go on after this: the service, or what it stands on, is away for the moment."""
    if isinstance(error, ProblemError):
        return error.problem.status == 503
    return isinstance(error, httpx.TransportError | TransportError)


class Follow:
    """Which event was seen last, and how often the stream was lost since.

    A stream that ends is no proof that the job did: the caller asks for the job and follows on while it is not done.
    """

    def __init__(self, job: Job | str, after: str | None, policy: RetryPolicy, away: Away | None = None) -> None:
        self.job = _calls.job_id(job)
        self.last_id = after
        self._policy = policy
        self._failures = 0
        self._opened = time.monotonic()
        self._at_end = False
        self._was_done = False
        self._away = away
        self._told = False

    def call(self) -> Call[None]:
        self._opened = time.monotonic()
        return _calls.follow(self.job, self.last_id)

    def take(self, message: ServerSentEvent) -> Event | None:
        """The event in a message; None for messages without data."""
        if not message.data:
            if message.event == LEDGER_AWAY:
                self._tell(KINDS[LEDGER_AWAY].title)
            return None
        try:
            event = Event.model_validate_json(message.data, extra="ignore")
        except ValidationError as error:
            raise ProtocolError(f"the event stream of {self.job} sent something that is no event: {error}") from error
        self._failures = 0
        self._told = False
        self.last_id = message.id or event.id
        self._at_end = event.kind is EventKind.STATE and event.data.get("state") in DONE
        return event

    def over(self, done: bool) -> bool:
        """Whether every event was seen, after a stream that ended in order. `done`: the job is, as asked since then.

        A service that stops ends its streams in order too, and the job may end before it answers again: then another
        stream has the events between.
        """
        over = done and (self._at_end or self._was_done)
        self._was_done = done
        return over

    def lost(self, error: Exception | None) -> float:
        """Seconds to wait before connecting again. Raises TransportError when it was lost too often in a row."""
        if time.monotonic() - self._opened > _LASTED_SECONDS:
            self._failures = 0
        self._failures += 1
        if self._failures > self._policy.attempts:
            raise TransportError(f"lost the event stream of {self.job} and cannot get it back: {error}") from error
        if error is not None:
            self._tell(error.problem.title if isinstance(error, ProblemError) else str(error) or type(error).__name__)
        return self._policy.pause(self._failures)

    def _tell(self, reason: str) -> None:
        if self._away is not None and not self._told:
            self._away(reason)
        self._told = True
