"""Routes of receipts: what every boot of an engine recorded. Read from the archive; written by workers alone."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field, StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from draftmill._model import Model
from draftmill.archive import Archive, diff
from draftmill.benchmarks import ArmName
from draftmill.receipts import ChainHeads, Receipt, ReceiptDiff, ReceiptPage
from draftmill_service.api.deps import Reader, answer
from draftmill_service.api.problems import documented
from draftmill_service.receipt_pages import receipt_page

router = APIRouter(prefix="/v1/receipts", tags=["receipts"])

Boot = Annotated[str, Path(description="`b` and 32 hex digits", max_length=256)]
_READ = documented("invalid-request", "not-found", "not-ready", "receipt-damaged")


class ListQuery(Model):
    job: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    arm: ArmName | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None
    """`next_cursor` of the page before, with the same filters."""


class DiffQuery(Model):
    a: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    b: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    all: bool = False
    """Also what differs between any two runs: times, ids, rates, cache sizes."""


@router.get(
    "",
    operation_id="list_receipts",
    summary="List boots, newest first",
    description="A boot that died is listed as `incomplete`; with a filter only boots that left a receipt are.",
    response_model=ReceiptPage,
    responses=documented("invalid-request", "invalid-cursor"),
)
async def list_receipts(query: Annotated[ListQuery, Query()], by: Reader) -> Response:
    found = await run_in_threadpool(
        receipt_page, by.archive, job=query.job, arm=query.arm, cursor=query.cursor, limit=query.limit
    )
    return answer(found)


@router.get(
    "/diff",
    operation_id="diff_receipts",
    summary="What differs between two receipts",
    response_model=ReceiptDiff,
    responses=_READ,
)
async def diff_receipts(query: Annotated[DiffQuery, Query()], by: Reader) -> Response:
    return answer(await run_in_threadpool(_diff, by.archive, query))


def _diff(archive: Archive, query: DiffQuery) -> ReceiptDiff:
    return diff(archive.receipt(query.a), archive.receipt(query.b), volatile=query.all)


@router.get(
    "/chains",
    operation_id="receipt_chains",
    summary="Heads of the writers' chains, as committed to the ledger",
    description="An archive whose chain is shorter than its head has lost its end.",
    response_model=ChainHeads,
    responses=documented(),
)
async def chains(by: Reader) -> Response:
    return answer(await by.cases.ledger.chain_heads())


@router.get("/{boot}", operation_id="get_receipt", summary="One receipt", response_model=Receipt, responses=_READ)
async def get(boot: Boot, by: Reader) -> Response:
    return answer(await run_in_threadpool(by.archive.receipt, boot))
