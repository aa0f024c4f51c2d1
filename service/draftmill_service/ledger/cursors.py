"""List cursors: a place in one query's answer."""

import re

from draftmill.digests import digest
from draftmill.jobs import JOB_ID
from draftmill.problems import ProblemError

_MARK = 16


def _mark(query: object, after: str) -> str:
    return digest({"query": query, "after": after})[:_MARK]


def make(query: object, after: str) -> str:
    """Cursor behind the item `after`, by its id without dots, in the answer to `query` (anything with a JSON form)."""
    return f"{after}.{_mark(query, after)}"


def read(query: object, cursor: str, ids: re.Pattern[str] = JOB_ID) -> str:
    """The id, one of `ids`, of a cursor that belongs to `query`; ProblemError("invalid-cursor") otherwise.

    The digest catches damage and a cursor used with other filters. It keeps no secret: a cursor gives a position, not a
    right.
    """
    after, _, mark = cursor.partition(".")
    if not ids.fullmatch(after) or mark != _mark(query, after):
        raise ProblemError("invalid-cursor", "take next_cursor from the page before, with the same filters")
    return after
