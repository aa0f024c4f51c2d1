"""Errors of the framework as named problems, with every offender in one answer."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import JsonValue
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from draftmill._locations import is_field
from draftmill.jobs import PathSource, RepoSource
from draftmill.problems import Offender, ProblemError
from draftmill_service.api import problems

MAX_OFFENDERS = 1000
MAX_TEXT = 200
# Pydantic puts the member of a union it tried into the location; these are no fields of the document.
_BRANCHES = {RepoSource.__name__: "repo", PathSource.__name__: "path"}
_SLUGS = {404: "not-found", 405: "method-not-allowed", 413: "payload-too-large"}
_DETAILS = {
    "not-found": "there is no such resource",
    "method-not-allowed": "see the Allow header",
    "payload-too-large": "the request body is larger than this service takes",
    "invalid-request": "the request cannot be read",
}


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


def _branch(error: Mapping[str, Any]) -> tuple[tuple[str | int, ...], str] | None:
    """The union that an error is of, by its place, and the member."""
    location: tuple[str | int, ...] = error["loc"]
    return next(((location[:at], str(part)) for at, part in enumerate(location) if part in _BRANCHES), None)


def _meant(errors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of each union's errors, those of the member that the caller meant: the one whose own field is there."""
    absent = {_branch(each) for each in errors if each["type"] == "missing" and each["loc"][-1] in _BRANCHES.values()}
    members = Counter(branch[0] for branch in absent if branch is not None)
    unmeant = {branch for branch in absent if branch is not None and members[branch[0]] < len(_BRANCHES)}
    return [each for each in errors if _branch(each) not in unmeant]


def _offenders(errors: Sequence[Mapping[str, Any]]) -> list[Offender]:
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


_OWN_SLUGS = {"field_not_supported": "field-not-supported", "scale_search_refused": "scale-search-refused"}
"""By the type of a validation error: what has a name of its own where nothing else is wrong."""


async def invalid(request: Request, error: Exception) -> Response:
    """Handler of RequestValidationError."""
    if not isinstance(error, RequestValidationError):
        raise error
    chosen = _meant(error.errors())
    offenders = _offenders(chosen)
    types = {each["type"] for each in chosen}
    slug = _OWN_SLUGS.get(types.pop(), "invalid-request") if len(types) == 1 else "invalid-request"
    detail = "; ".join(f"{offender.where}: {offender.message}" for offender in offenders[:3])
    refusal = ProblemError(slug, detail, offenders[:MAX_OFFENDERS])
    return await problems.refuse(request, refusal)


def _allowed(request: Request) -> str:
    """Methods of every route of the path; Starlette names those of the first it finds."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.path_regex.match(request.scope["path"]):
            methods |= route.methods or set()
    return ", ".join(sorted(methods))


async def http_error(request: Request, error: Exception) -> Response:
    """Handler of HTTPException: unknown routes and methods, and bodies the framework cannot read."""
    if not isinstance(error, HTTPException):
        raise error
    slug = _SLUGS.get(error.status_code, "invalid-request" if error.status_code < 500 else "internal")
    refusal = ProblemError(slug, _DETAILS.get(slug, "the request failed"))
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = _allowed(request)
    return problems.answer(refusal.problem, request_id=request.scope.get("draftmill.request_id"), headers=headers)
