"""The table of jobs."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from draftmill._model import Model
from draftmill.batches import ItemFormat
from draftmill.choices import AUTO, KEEP
from draftmill.formats import Format
from draftmill.plans import Family
from draftmill.states import JobState
from draftmill_service.ledger import Filters
from draftmill_service.web.forms import or_none
from draftmill_service.web.guard import Viewing
from draftmill_service.web.pages import address, page, part_asked, unchanged

router = APIRouter()

TABLE = "jobs-table"
PER_PAGE = 50

TextLabel = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?(=[^\x00]*)?$", max_length=320)
]


class JobsQuery(Model):
    state: Annotated[JobState | None, or_none] = None
    format: Annotated[ItemFormat | None, or_none] = None
    family: Annotated[Family | None, or_none] = None
    label: Annotated[list[Annotated[TextLabel | None, or_none]], Field(max_length=16)] = Field(default_factory=list)
    sort: Literal["newest", "oldest"] = "newest"
    cursor: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(label for label in self.label if label)

    def link(self, **changes: Any) -> str:
        """Address of this table with other filters, from its first page."""
        asked: dict[str, Any] = {
            "state": self.state,
            "format": self.format,
            "family": self.family,
            "label": self.labels,
            "sort": None if self.sort == "newest" else self.sort,
        } | changes
        return address("/jobs", **asked)


@router.get("/jobs")
async def jobs(request: Request, query: Annotated[JobsQuery, Query()], by: Viewing) -> Response:
    ledger = by.site.cases.ledger
    filters = Filters(query.state, query.format, query.family, query.labels)
    found = await ledger.list(filters, cursor=query.cursor, limit=PER_PAGE, oldest_first=query.sort == "oldest")
    gauges = await ledger.gauges()
    mark, same = unchanged(request, (found, gauges.states))
    part = part_asked(request) == TABLE
    if part and same:
        return Response(status_code=204)
    context = {
        "query": query,
        "jobs": found.items,
        "next": None if found.next_cursor is None else query.link(cursor=found.next_cursor),
        "counts": gauges.states,
        "total": sum(gauges.states.values()),
        "mark": mark,
        "states": list(JobState),
        "formats": [*Format, AUTO, KEEP],
        "families": list(Family),
    }
    return page(request, by, "jobs_table.html" if part else "jobs.html", context)
