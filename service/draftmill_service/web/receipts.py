"""Receipts: the list of boots, one receipt, and what differs between two."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field, StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from draftmill._model import Model
from draftmill.archive import Archive, diff
from draftmill.archive.reader import state_of
from draftmill.benchmarks import ArmName
from draftmill.problems import ProblemError
from draftmill.receipts import BootState, Receipt, ReceiptDiff, ReceiptSummary
from draftmill_service.receipt_pages import receipt_page
from draftmill_service.web.forms import or_none
from draftmill_service.web.guard import Viewing
from draftmill_service.web.pages import address, page

router = APIRouter(prefix="/receipts")

PER_PAGE = 50
Text = Annotated[str, StringConstraints(max_length=256)]


class ReceiptsQuery(Model):
    job: Annotated[Text | None, or_none] = None
    arm: Annotated[ArmName | None, or_none] = None
    cursor: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None


@router.get("")
async def receipts(request: Request, query: Annotated[ReceiptsQuery, Query()], by: Viewing) -> Response:
    found = await run_in_threadpool(
        receipt_page, by.site.archive, job=query.job, arm=query.arm, cursor=query.cursor, limit=PER_PAGE
    )
    more = found.next_cursor
    context = {
        "query": query,
        "receipts": found.items,
        "arms": list(ArmName),
        "next": None if more is None else address("/receipts", job=query.job, arm=query.arm, cursor=more),
    }
    return page(request, by, "receipts.html", context)


class DiffQuery(Model):
    boot: Annotated[list[Text], Field(max_length=16)] = Field(default_factory=list)
    """The two, as the list's boxes send them."""
    all: bool = False


@router.get("/diff")
async def diff_two(request: Request, query: Annotated[DiffQuery, Query()], by: Viewing) -> Response:
    if len(query.boot) != 2:
        raise ProblemError("invalid-request", f"choose two boots to compare, not {len(query.boot)}")
    receipts, changes = await run_in_threadpool(_diff, by.site.archive, query.boot[0], query.boot[1], query.all)
    return page(request, by, "receipt_diff.html", {"query": query, "receipts": receipts, "changes": changes.changes})


def _diff(archive: Archive, a: str, b: str, volatile: bool) -> tuple[tuple[Receipt, Receipt], ReceiptDiff]:
    left, right = archive.receipt(a), archive.receipt(b)
    return (left, right), diff(left, right, volatile=volatile)


@router.get("/{boot}")
async def receipt(request: Request, boot: Annotated[str, Path(max_length=256)], by: Viewing) -> Response:
    state, found, others = await run_in_threadpool(_read, by.site.archive, boot)
    context = {"boot": boot, "boot_state": state, "receipt": found, "others": others}
    return page(request, by, "receipt.html", context)


def _read(archive: Archive, boot: str) -> tuple[BootState, Receipt | None, list[ReceiptSummary]]:
    """The receipt, where the boot left one, and the newest boots of the same arm to compare it with."""
    state = state_of(archive.folder(boot).path)
    if state is not BootState.SEALED:
        return state, None, []
    found = archive.receipt(boot)
    newest = receipt_page(archive, arm=found.arm, limit=20).items
    return state, found, [each for each in newest if each.boot != boot]
