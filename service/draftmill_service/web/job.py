"""One job: how it went, its plan, its checks, its benchmark, its files; cancel and retry."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field, StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from draftmill._model import Model
from draftmill.choices import Candidate, Choice
from draftmill.jobs import Job
from draftmill.plans import Fate, Plan
from draftmill.problems import Problem, ProblemError
from draftmill_service.web import log
from draftmill_service.web.charts.bars import category_bars
from draftmill_service.web.charts.curves import acceptance_curves
from draftmill_service.web.charts.timeline import timeline
from draftmill_service.web.comparison import curves_of
from draftmill_service.web.download import download
from draftmill_service.web.forms import or_none
from draftmill_service.web.guard import Editing, Viewing
from draftmill_service.web.pages import address, page, part_asked, unchanged

router = APIRouter(prefix="/jobs/{job_id}")

JobId = Annotated[str, Path(max_length=256)]
STATUS = "status"
PLAN_TABLE = "plan-table"
TENSORS_PER_PAGE = 200
MOST_CANDIDATES = 40
MOST_ROWS = 100
"""Of a table of what was weighed, or written; the API has all."""


@router.get("")
async def overview(request: Request, job_id: JobId, by: Viewing) -> Response:
    job = await by.site.cases.get(job_id)
    mark, same = unchanged(request, job)
    if part_asked(request) == STATUS:
        if same:
            return Response(status_code=204)
        return page(request, by, "job_status.html", {"job": job, "rows": timeline(job), "mark": mark})
    lines = await log.tail(by.site.cases.ledger, job)
    context = {"tab": "overview", "job": job, "rows": timeline(job), "mark": mark, "log": lines}
    return page(request, by, "job.html", context)


class PlanQuery(Model):
    q: Annotated[str, StringConstraints(max_length=256)] = ""
    fate: Annotated[Fate | None, or_none] = None
    page: Annotated[int, Field(ge=1, le=10_000)] = 1


@router.get("/plan")
async def plan(request: Request, job_id: JobId, query: Annotated[PlanQuery, Query()], by: Viewing) -> Response:
    job = await by.site.cases.get(job_id)
    found, missing = await _stored(by.site.store.plan, job)
    context: dict[str, Any] = {"tab": "plan", "job": job, "plan": found, "missing": missing, "query": query}
    if found is not None:
        context |= tensors_shown(found, query.q, query.fate, query.page, address(f"/jobs/{job_id}/plan"))
    return page(request, by, "plan_table.html" if part_asked(request) == PLAN_TABLE else "job_plan.html", context)


def tensors_shown(plan: Plan, text: str, fate: Fate | None, number: int, base: str) -> dict[str, Any]:
    """The tensors that a search leaves, by the page: every word must be in a tensor's name, fate, reason or group."""
    words = text.lower().split()
    hits = [
        tensor
        for tensor in plan.tensors
        if fate in (None, tensor.fate)
        and all(word in f"{tensor.name} {tensor.fate} {tensor.reason} {tensor.group or ''}".lower() for word in words)
    ]
    pages = max(1, -(-len(hits) // TENSORS_PER_PAGE))
    number = min(number, pages)
    first = (number - 1) * TENSORS_PER_PAGE
    counts = {each: sum(tensor.fate is each for tensor in plan.tensors) for each in Fate}
    return {
        "tensors": hits[first : first + TENSORS_PER_PAGE],
        "hits": len(hits),
        "fates": {each: count for each, count in counts.items() if count},
        "number": number,
        "pages": pages,
        "base": base,
    }


@router.get("/verify")
async def verify(request: Request, job_id: JobId, by: Viewing) -> Response:
    job = await by.site.cases.get(job_id)
    report, missing = await _stored(by.site.store.verify_report, job)
    return page(request, by, "job_verify.html", {"tab": "verify", "job": job, "report": report, "missing": missing})


@router.get("/acceptance")
async def acceptance(request: Request, job_id: JobId, by: Viewing) -> Response:
    job = await by.site.cases.get(job_id)
    found, missing = await _stored(by.site.store.acceptance, job)
    context: dict[str, Any] = {"tab": "acceptance", "job": job, "found": found, "missing": missing}
    if found is not None:
        series = curves_of(job, found)
        context |= {"curves": acceptance_curves(series), "bars": category_bars(series)}
    return page(request, by, "job_acceptance.html", context)


@dataclass(frozen=True)
class CandidateRow:
    candidate: Candidate
    chosen: bool
    low: float | None
    """Acceptance length at the ends of its interval."""
    high: float | None


def candidate_rows(found: Choice) -> list[CandidateRow]:
    """What is shown, by size, the chosen among them."""
    rows = []
    for number, each in enumerate(found.candidates):
        low, high = (None, None) if each.al_interval is None else (each.al_interval.low, each.al_interval.high)
        rows.append(CandidateRow(each, number == found.chosen, low, high))
    return [row for number, row in enumerate(rows) if number < MOST_CANDIDATES or row.chosen]


@router.get("/choice")
async def choice(request: Request, job_id: JobId, by: Viewing) -> Response:
    job = await by.site.cases.get(job_id)
    found, missing = await _stored(by.site.store.choice, job)
    context: dict[str, Any] = {"tab": "choice", "job": job, "found": found, "missing": missing}
    if found is not None:
        rows = candidate_rows(found)
        context |= {"candidates": rows, "more_candidates": len(found.candidates) - len(rows)}
        context |= {"modules": found.sensitivities[:MOST_ROWS], "more_modules": len(found.sensitivities) - MOST_ROWS}
    return page(request, by, "job_choice.html", context)


@router.get("/head")
async def head(request: Request, job_id: JobId, by: Viewing) -> Response:
    job = await by.site.cases.get(job_id)
    found, missing = await _stored(by.site.store.head, job)
    divergences = []
    if found is not None and (report := found.report) is not None:
        divergences = [(name, it) for name, it in (("rtn", report.rtn), (report.method, report.gptq)) if it is not None]
    context = {"tab": "head", "job": job, "found": found, "missing": missing, "divergences": divergences}
    return page(request, by, "job_rewrite.html", context | {"most": MOST_ROWS})


@router.get("/files")
async def files(request: Request, job_id: JobId, by: Viewing) -> Response:
    job = await by.site.cases.get(job_id)
    found, missing = await _stored(by.site.store.artifacts, job)
    return page(request, by, "job_files.html", {"tab": "files", "job": job, "artifacts": found, "missing": missing})


@router.get("/files/{path:path}")
async def file(job_id: JobId, path: Annotated[str, Path(max_length=4096)], by: Viewing) -> Response:
    job = await by.site.cases.get(job_id)
    found, listed, _ = await run_in_threadpool(by.site.store.artifact, job, path)
    return download(found, listed)


@router.post("/cancel")
async def cancel(job_id: JobId, by: Editing) -> Response:
    return _back(await by.site.cases.cancel(job_id))


@router.post("/retry")
async def retry(job_id: JobId, by: Editing) -> Response:
    return _back(await by.site.cases.retry(job_id))


def _back(job: Job) -> Response:
    return RedirectResponse(address(f"/jobs/{job.id}"), 303)


async def _stored(read: Any, job: Job) -> tuple[Any, Problem | None]:
    """What the store has, or why it has not."""
    try:
        return await run_in_threadpool(read, job), None
    except ProblemError as error:
        return None, error.problem
