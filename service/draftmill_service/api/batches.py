"""Routes of batches."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field, StringConstraints
from starlette.responses import Response

from draftmill._model import Model
from draftmill.batch_table import report_csv
from draftmill.batches import MAX_SOURCES, Batch, BatchItemPage, BatchPage, BatchReport, BatchSpec
from draftmill.formats import Format
from draftmill.states import JobState
from draftmill_service.api.bodies import documented_body, read_body
from draftmill_service.api.deps import BatchId, Reader, Writer, answer
from draftmill_service.api.idempotency import REPLAYED, BatchKey
from draftmill_service.api.jobs import Label
from draftmill_service.api.problems import documented
from draftmill_service.ledger.batches import BatchFilters, ItemFilters

router = APIRouter(prefix="/v1/batches", tags=["batches"])

CSV = "text/csv"
Cursor = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class ListQuery(Model):
    state: JobState | None = None
    label: Annotated[list[Label], Field(max_length=16)] = Field(default_factory=list)
    """`key` or `key=value`; may be given several times, all must hold."""
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Cursor | None = None
    """`next_cursor` of the page before, with the same filters."""


class ItemsQuery(Model):
    state: JobState | None = None
    format: Format | None = None
    source: Annotated[int, Field(ge=0, lt=MAX_SOURCES)] | None = None
    """Position in the spec's list of sources."""
    limit: Annotated[int, Field(ge=1, le=1000)] = 200
    cursor: Cursor | None = None
    """`next_cursor` of the page before, with the same filters."""


class ReportQuery(Model):
    format: Literal["json", "csv"] | None = None
    """Wins over the Accept header."""


def _made(description: str, **headers: str) -> dict[str, Any]:
    return {
        "model": Batch,
        "description": description,
        "headers": {name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()},
    }


@router.post(
    "",
    operation_id="submit_batch",
    summary="Submit a batch: every source in every format with every set of options",
    status_code=201,
    response_model=Batch,
    openapi_extra=documented_body(BatchSpec),
    responses={
        200: _made(
            "The Idempotency-Key was used before with this spec; this is that batch.", **{REPLAYED: "Always `true`."}
        ),
        201: _made("The batch's items are queued.", Location="Path of the batch."),
        **documented("invalid-request", "field-not-supported", "idempotency-mismatch", "payload-too-large"),
    },
)
async def submit(request: Request, by: Writer, idempotency_key: BatchKey = None) -> Response:
    spec = await read_body(request, BatchSpec)
    batch, created = await by.cases.submit_batch(spec, owner=by.key.id, idempotency_key=idempotency_key)
    if created:
        return answer(batch, 201, {"Location": f"/v1/batches/{batch.id}"})
    return answer(batch, 200, {REPLAYED: "true"})


@router.get(
    "",
    operation_id="list_batches",
    summary="List batches, newest first",
    response_model=BatchPage,
    responses=documented("invalid-request", "invalid-cursor"),
)
async def list_batches(query: Annotated[ListQuery, Query()], by: Reader) -> Response:
    filters = BatchFilters(query.state, tuple(query.label))
    return answer(await by.cases.ledger.list_batches(filters, cursor=query.cursor, limit=query.limit))


_ONE = documented("invalid-request", "not-found", "expired")


@router.get("/{batch_id}", operation_id="get_batch", summary="One batch", response_model=Batch, responses=_ONE)
async def get(batch_id: BatchId, by: Reader) -> Response:
    return answer(await by.cases.ledger.get_batch(batch_id))


@router.get(
    "/{batch_id}/items",
    operation_id="batch_items",
    summary="The items of a batch, by number",
    response_model=BatchItemPage,
    responses=documented("invalid-request", "not-found", "expired", "invalid-cursor"),
)
async def items(batch_id: BatchId, query: Annotated[ItemsQuery, Query()], by: Reader) -> Response:
    filters = ItemFilters(query.state, query.format, query.source)
    return answer(await by.cases.ledger.batch_items(batch_id, filters, cursor=query.cursor, limit=query.limit))


@router.get(
    "/{batch_id}/report",
    operation_id="batch_report",
    summary="What the items found: sizes, acceptance length, verdicts, the front of size against acceptance length",
    description="JSON, or CSV where `Accept: text/csv` or `?format=csv` asks for it. Also of a batch that is not done.",
    response_model=BatchReport,
    responses={200: {"content": {CSV: {"schema": {"type": "string"}}}}, **_ONE},
)
async def report(request: Request, batch_id: BatchId, query: Annotated[ReportQuery, Query()], by: Reader) -> Response:
    found = await by.cases.ledger.batch_report(batch_id)
    accepted = [part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")]
    if query.format == "csv" or (query.format is None and CSV in accepted and "application/json" not in accepted):
        name = f'attachment; filename="{found.batch.id}.csv"'
        return Response(report_csv(found), headers={"Vary": "Accept", "Content-Disposition": name}, media_type=CSV)
    return answer(found, headers={"Vary": "Accept"})


@router.post(
    "/{batch_id}/cancel",
    operation_id="cancel_batch",
    summary="Cancel a batch",
    description="Items that wait are canceled at once; the batch is `canceling` until workers have stopped the others.",
    response_model=Batch,
    responses=documented("invalid-request", "not-found", "expired", "conflict"),
)
async def cancel(batch_id: BatchId, by: Writer) -> Response:
    return answer(await by.cases.ledger.cancel_batch(batch_id))


@router.post(
    "/{batch_id}/retry",
    operation_id="retry_batch",
    summary="Queue the items again that failed or were canceled",
    response_model=Batch,
    responses=documented("invalid-request", "not-found", "expired", "conflict"),
)
async def retry(batch_id: BatchId, by: Writer) -> Response:
    return answer(await by.cases.ledger.retry_batch(batch_id))
