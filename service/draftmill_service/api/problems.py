"""Problems as answers, and as documentation of the routes that give them."""

from collections import defaultdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from draftmill.problems import KINDS, Problem, ProblemError

MEDIA_TYPE = "application/problem+json"
EVERYWHERE = ("unauthenticated", "forbidden", "internal", "ledger-unavailable")


def answer(problem: Problem, *, request_id: str | None = None, headers: dict[str, str] | None = None) -> Response:
    if request_id is not None and problem.instance is None:
        problem = problem.model_copy(update={"instance": f"urn:draftmill:request:{request_id}"})
    return Response(
        problem.model_dump_json(exclude_none=True), problem.status, {**(headers or {})}, media_type=MEDIA_TYPE
    )


async def refuse(request: Request, error: Exception) -> Response:
    """Handler of ProblemError."""
    if not isinstance(error, ProblemError):
        raise error
    return answer(error.problem, request_id=request.scope.get("draftmill.request_id"))


def documented(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that answers these problems, beside those of every route."""
    by_status: defaultdict[int, list[str]] = defaultdict(list)
    for slug in (*slugs, *EVERYWHERE):
        by_status[KINDS[slug].status].append(slug)
    return {
        status: {
            "description": "; ".join(f"`{slug}`: {KINDS[slug].title}" for slug in listed),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status, listed in sorted(by_status.items())
    }
