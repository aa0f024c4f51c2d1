"""Errors of the framework as named problems, with every offender in one answer."""

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from draftmill.problems import ProblemError
from draftmill_service.api import problems
from draftmill_service.offenders import meant, offenders

MAX_OFFENDERS = 1000
_SLUGS = {404: "not-found", 405: "method-not-allowed", 413: "payload-too-large"}
_DETAILS = {
    "not-found": "there is no such resource",
    "method-not-allowed": "see the Allow header",
    "payload-too-large": "the request body is larger than this service takes",
    "invalid-request": "the request cannot be read",
}


_OWN_SLUGS = {"field_not_supported": "field-not-supported", "scale_search_refused": "scale-search-refused"}
"""By the type of a validation error: what has a name of its own where nothing else is wrong."""


async def invalid(request: Request, error: Exception) -> Response:
    """Handler of RequestValidationError."""
    if not isinstance(error, RequestValidationError):
        raise error
    chosen = meant(error.errors())
    found = offenders(chosen)
    types = {each["type"] for each in chosen}
    slug = _OWN_SLUGS.get(types.pop(), "invalid-request") if len(types) == 1 else "invalid-request"
    detail = "; ".join(f"{offender.where}: {offender.message}" for offender in found[:3])
    refusal = ProblemError(slug, detail, found[:MAX_OFFENDERS])
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
