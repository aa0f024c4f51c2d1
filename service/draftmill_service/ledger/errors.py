"""What the ledger raises beside ProblemError."""

from redis import exceptions

AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
)
"""Errors of redis-py that pass once somebody has mended Redis."""


class LeaseLost(Exception):  # noqa: N818 (says what happened, to one who asks for it)
    """The writer no longer holds the job: its lease was reaped, or the job ended. Whatever it still does is void."""

    def __init__(self, job_id: str, fence: int) -> None:
        super().__init__(f"the lease on {job_id} with fence {fence} is lost")


class LedgerUnavailable(Exception):  # noqa: N818
    """Redis cannot be reached, or did not answer in time. The write may or may not have happened."""
