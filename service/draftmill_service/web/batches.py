"""Batches: the list, and one batch as a matrix coloured by outcome."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import StringConstraints
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from draftmill._model import Model
from draftmill.batch_table import report_csv
from draftmill.batches import Batch, BatchReport, BatchSpec, ItemFormat, ReportRow
from draftmill.benchmarks import Verdict
from draftmill.states import JobState
from draftmill_service.ledger.batches import BatchFilters
from draftmill_service.web.forms import or_none
from draftmill_service.web.guard import Editing, Viewing
from draftmill_service.web.jobs import TextLabel
from draftmill_service.web.pages import address, page, part_asked, unchanged
from draftmill_service.web.words import source

router = APIRouter(prefix="/batches")

BatchId = Annotated[str, Path(max_length=256)]
LIST, MATRIX = "batches-table", "batch"
PER_PAGE = 50
CELLS_PER_PAGE = 400
MOST_COMPARED = 40


class BatchesQuery(Model):
    state: Annotated[JobState | None, or_none] = None
    label: Annotated[TextLabel | None, or_none] = None
    cursor: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None

    def link(self, **changes: Any) -> str:
        return address("/batches", **({"state": self.state, "label": self.label} | changes))


@router.get("")
async def batches(request: Request, query: Annotated[BatchesQuery, Query()], by: Viewing) -> Response:
    filters = BatchFilters(query.state, () if query.label is None else (query.label,))
    found = await by.site.cases.ledger.list_batches(filters, cursor=query.cursor, limit=PER_PAGE)
    mark, same = unchanged(request, found)
    part = part_asked(request) == LIST
    if part and same:
        return Response(status_code=204)
    context = {
        "query": query,
        "batches": found.items,
        "next": None if found.next_cursor is None else query.link(cursor=found.next_cursor),
        "states": list(JobState),
        "mark": mark,
    }
    return page(request, by, "batches_table.html" if part else "batches.html", context)


@dataclass(frozen=True)
class Cell:
    row: ReportRow

    @property
    def outcome(self) -> str:
        """What colours it: a variant that failed its gate is no success."""
        if self.row.verdict is Verdict.FAILED:
            return "failed"
        return "removed" if self.row.state is None else str(self.row.state)


@dataclass(frozen=True)
class Line:
    """A source of the matrix."""

    name: str
    cells: tuple[Cell, ...]

    @property
    def measured(self) -> list[str]:
        """Its jobs that can be compared."""
        return [cell.row.job for cell in self.cells if cell.row.job and cell.row.al is not None][:MOST_COMPARED]


@dataclass(frozen=True)
class Column:
    format: ItemFormat
    options: str
    """Empty where the matrix has no such axis."""


def columns(spec: BatchSpec) -> list[Column]:
    """In the order of the items' numbers."""
    names = [each.name or str(place) for place, each in enumerate(spec.options)]
    shown = names if len(names) > 1 else [""]
    return [Column(format, name) for format in spec.formats for name in shown]


def lines(report: BatchReport, spec: BatchSpec, number: int) -> tuple[list[Line], int]:
    """The sources of one page, and how many pages there are."""
    width = len(spec.formats) * len(spec.options)
    per_page = max(1, CELLS_PER_PAGE // width)
    pages = max(1, -(-len(spec.sources) // per_page))
    first = (min(number, pages) - 1) * per_page
    shown = enumerate(spec.sources[first : first + per_page], first)
    found = [
        Line(source(each), tuple(map(Cell, report.rows[place * width : (place + 1) * width]))) for place, each in shown
    ]
    return found, pages


@router.get("/{batch_id}")
async def batch(
    request: Request,
    batch_id: BatchId,
    by: Viewing,
    number: Annotated[int, Query(alias="page", ge=1, le=10_000)] = 1,
) -> Response:
    found = await by.site.cases.ledger.get_batch(batch_id)
    mark, same = unchanged(request, (found.state, found.counts, found.made, found.timestamps))
    part = part_asked(request) == MATRIX
    if part and same:
        return Response(status_code=204)
    report = await by.site.cases.ledger.batch_report(batch_id)
    shown, pages = lines(report, found.spec, number)
    context = {
        "batch": found,
        "columns": columns(found.spec),
        "lines": shown,
        "number": min(number, pages),
        "pages": pages,
        "failed_gate": sum(row.verdict is Verdict.FAILED for row in report.rows),
        "mark": mark,
    }
    return page(request, by, "batch_matrix.html" if part else "batch.html", context)


@router.get("/{batch_id}/report.csv")
async def report(batch_id: BatchId, by: Viewing) -> Response:
    found = await by.site.cases.ledger.batch_report(batch_id)
    disposition = {"Content-Disposition": f'attachment; filename="{found.batch.id}.csv"'}
    return Response(report_csv(found), headers=disposition, media_type="text/csv")


@router.post("/{batch_id}/cancel")
async def cancel(batch_id: BatchId, by: Editing) -> Response:
    return _back(await by.site.cases.ledger.cancel_batch(batch_id))


@router.post("/{batch_id}/retry")
async def retry(batch_id: BatchId, by: Editing) -> Response:
    return _back(await by.site.cases.ledger.retry_batch(batch_id))


def _back(batch: Batch) -> Response:
    return RedirectResponse(address(f"/batches/{batch.id}"), 303)
