"""Submitting a job: the form, the plan that it would follow, the job."""

import secrets
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from draftmill.choices import KEEP
from draftmill.formats import FORMATS, Format
from draftmill.jobs import JobSpec
from draftmill.problems import ProblemError
from draftmill_service.web.guard import Editing, Viewer, Viewing
from draftmill_service.web.job import tensors_shown
from draftmill_service.web.pages import address, page
from draftmill_service.web.submit_form import BOXES, DEFAULTS, TEXTS, Filled, like_job, read

router = APIRouter(prefix="/submit")


@router.get("")
async def form(request: Request, by: Viewing, like: str | None = None) -> Response:
    filled = Filled(DEFAULTS) if like is None else like_job((await by.site.cases.get(like)).spec)
    return _form(request, by, filled)


@router.post("")
async def plan(request: Request, by: Editing) -> Response:
    """The plan, before there is a job."""
    filled, spec = read(by.form)
    if spec is None:
        return _form(request, by.viewer, filled, 422)
    if by.form.checked("change"):
        return _form(request, by.viewer, filled)
    context: dict[str, Any] = {"values": filled.values, "spec": spec, "once": secrets.token_hex(16)}
    context |= {"answer": None, "plan": None, "problem": None, "unanswered": False, "planned": planned(spec)}
    if spec.format == KEEP:
        return page(request, by.viewer, "submit_plan.html", context)
    try:
        answer = await by.site.cases.preflight(planned(spec))
    except ProblemError as error:
        # Nobody answered; that is no refusal.
        context |= {"problem": error.problem, "unanswered": True}
        return page(request, by.viewer, "submit_plan.html", context, error.problem.status)
    context |= {"answer": answer, "plan": answer.plan, "problem": answer.problem}
    if answer.plan is not None:
        context |= tensors_shown(answer.plan, "", None, 1, "")
    return page(request, by.viewer, "submit_plan.html", context, 200 if answer.ok else 422)


def planned(spec: JobSpec) -> JobSpec:
    """What can be planned before a job with `format: auto` has chosen: of its formats the one that most shapes fit. Any
    other spec is what it is."""
    if spec.auto is None:
        return spec
    easiest = min(spec.auto.formats or tuple(Format), key=lambda format: FORMATS[format].in_multiple)
    quantize = spec.quantize.model_copy(update={"nvfp4_scale_search": False})
    return spec.model_copy(update={"format": easiest, "auto": None, "quantize": quantize})


@router.post("/confirm")
async def confirm(request: Request, by: Editing) -> Response:
    filled, spec = read(by.form)
    if spec is None:
        return _form(request, by.viewer, filled, 422)
    # A second click of the same form is the same job.
    once = by.form.text("once") or secrets.token_hex(16)
    job, _ = await by.site.cases.submit(spec, owner=by.viewer.key.id, idempotency_key=f"web-{once}"[:255])
    return RedirectResponse(address(f"/jobs/{job.id}"), 303)


def _form(request: Request, viewer: Viewer, filled: Filled, status: int = 200) -> Response:
    context = {
        "values": {**dict.fromkeys((*TEXTS, *BOXES), ""), **filled.values},
        "offenders": filled.wrong,
        "beside": filled.beside,
        "left_out": filled.left_out,
        "formats": list(FORMATS.values()),
    }
    return page(request, viewer, "submit.html", context, status)
