"""List cursors: a place in one query's answer."""

from draftmill.digests import digest
from draftmill.jobs import JOB_ID
from draftmill.problems import ProblemError

_MARK = 16


def _mark(query: object, job_id: str) -> str:
    return digest({"query": query, "after": job_id})[:_MARK]


def make(query: object, job_id: str) -> str:
    """Cursor behind `job_id` in the answer to `query` (anything with a JSON form)."""
    return f"{job_id}.{_mark(query, job_id)}"


def read(query: object, cursor: str) -> str:
    """The job id of a cursor that belongs to `query`; ProblemError("invalid-cursor") otherwise.

    The digest catches damage and a cursor used with other filters. It keeps no secret: a cursor gives a position, not a
    right.
    """
    job_id, _, mark = cursor.partition(".")
    if not JOB_ID.fullmatch(job_id) or mark != _mark(query, job_id):
        raise ProblemError("invalid-cursor", "take next_cursor from the page before, with the same filters")
    return job_id
