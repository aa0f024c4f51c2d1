"""What Pydantic finds wrong with a request, as the offenders of a problem: all of them, each by its JSON path."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from draftmill._locations import is_field
from draftmill.jobs import PathSource, RepoSource
from draftmill.problems import Offender

MAX_TEXT = 200
# Pydantic puts the member of a union it tried into the location; these are no fields of the document.
_BRANCHES = {RepoSource.__name__: "repo", PathSource.__name__: "path"}
Fault = Mapping[str, Any]
"""As Pydantic gives it, with `body`, `query` or the like before its place in the document."""


def _where(location: Sequence[str | int]) -> str:
    place, *rest = location
    rest = [part for part in rest if part not in _BRANCHES and is_field(part)]
    if place != "body":
        return ".".join(str(part) for part in (place, *rest))
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)


def _clean(text: str) -> str:
    return text[:MAX_TEXT].encode("utf-8", "replace").decode()


def _value(value: object) -> JsonValue:
    """What was sent, if it is short and plain enough to send back."""
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, bool | int):
        return value if abs(value) < 2**53 else None
    if isinstance(value, float) and math.isfinite(value):
        return value
    return None


def _branch(error: Fault) -> tuple[tuple[str | int, ...], str] | None:
    """The union that an error is of, by its place, and the member."""
    location: tuple[str | int, ...] = error["loc"]
    return next(((location[:at], str(part)) for at, part in enumerate(location) if part in _BRANCHES), None)


def meant(errors: Sequence[Fault]) -> list[Fault]:
    """Of each union's errors, those of the member that the caller meant: the one whose own field is there."""
    absent = {_branch(each) for each in errors if each["type"] == "missing" and each["loc"][-1] in _BRANCHES.values()}
    members = Counter(branch[0] for branch in absent if branch is not None)
    unmeant = {branch for branch in absent if branch is not None and members[branch[0]] < len(_BRANCHES)}
    return [each for each in errors if _branch(each) not in unmeant]


def offenders(errors: Sequence[Fault]) -> list[Offender]:
    """What is wrong at a place that takes several kinds is one offender with all that was missed."""
    found: dict[str, list[Offender]] = {}
    for each in errors:
        where, message = _clean(_where(each["loc"])), _clean(each["msg"])
        offender = Offender(where=where, message=message, value=_value(each.get("input")))
        here = found.setdefault(where, [])
        if not here or all(is_field(part) for part in each["loc"]):
            here += [offender] if offender not in here else []
        else:
            here[-1] = here[-1].model_copy(update={"message": _clean(f"{here[-1].message}; or: {message}")})
    return [offender for here in found.values() for offender in here]
