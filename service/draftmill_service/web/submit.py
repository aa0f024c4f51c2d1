"""Submitting a job: the form, the plan that it would follow, the job."""

import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from draftmill.formats import FORMATS
from draftmill.jobs import JobSpec
from draftmill.problems import ProblemError
from draftmill_service.web.forms import Form
from draftmill_service.web.guard import Editing, Viewer, Viewing
from draftmill_service.web.job import tensors_shown
from draftmill_service.web.pages import address, page

router = APIRouter(prefix="/submit")

TEXTS = (
    "source",
    "revision",
    "format",
    "exclude",
    "dtype",
    "scales",
    "labels",
    "deadline",
    "target",
    "target_revision",
    "num_speculative_tokens",
    "prompts",
    "max_tokens",
    "max_al_drop",
)
BOXES = ("lm_head", "accept_failed_gate")
DEFAULTS = {
    "revision": "main",
    "format": "fp8",
    "dtype": "bfloat16",
    "scales": "fused",
    "target_revision": "main",
    "num_speculative_tokens": "3",
    "max_al_drop": "0.05",
}
_PLACES = {
    "source": "drafter",
    "benchmark.target": "target",
    "quantize.exclude": "exclude patterns",
    "benchmark.num_speculative_tokens": "draft tokens",
    "benchmark.prompts.limit": "prompts",
    "benchmark.prompts.max_tokens": "tokens a prompt",
    "benchmark.gate.max_al_drop": "largest fall",
}


_FIELD = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True)
class Filled:
    """The form as it was filled in, and what is wrong with it."""

    values: dict[str, str]
    errors: list[str] = field(default_factory=list)


@router.get("")
async def form(request: Request, by: Viewing, like: str | None = None) -> Response:
    values = dict(DEFAULTS)
    if like is not None:
        values |= _values((await by.site.cases.get(like)).spec)
    return _form(request, by, Filled(values))


@router.post("")
async def plan(request: Request, by: Editing) -> Response:
    """The plan, before there is a job."""
    values, spec, errors = _read(by.form)
    if spec is None:
        return _form(request, by.viewer, Filled(values, errors), 422)
    if by.form.checked("change"):
        return _form(request, by.viewer, Filled(values))
    context: dict[str, Any] = {"values": values, "spec": spec, "once": secrets.token_hex(16)}
    try:
        answer = await by.site.cases.preflight(spec)
    except ProblemError as error:
        # Nobody answered; that is no refusal.
        context |= {"answer": None, "plan": None, "problem": error.problem, "unanswered": True}
        return page(request, by.viewer, "submit_plan.html", context, error.problem.status)
    context |= {"answer": answer, "plan": answer.plan, "problem": answer.problem, "unanswered": False}
    if answer.plan is not None:
        context |= tensors_shown(answer.plan, "", None, 1, "")
    return page(request, by.viewer, "submit_plan.html", context, 200 if answer.ok else 422)


@router.post("/confirm")
async def confirm(request: Request, by: Editing) -> Response:
    values, spec, errors = _read(by.form)
    if spec is None:
        return _form(request, by.viewer, Filled(values, errors), 422)
    # A second click of the same form is the same job.
    once = by.form.text("once") or secrets.token_hex(16)
    job, _ = await by.site.cases.submit(spec, owner=by.viewer.key.id, idempotency_key=f"web-{once}"[:255])
    return RedirectResponse(address(f"/jobs/{job.id}"), 303)


def _form(request: Request, viewer: Viewer, filled: Filled, status: int = 200) -> Response:
    context = {"values": {**dict.fromkeys((*TEXTS, *BOXES), ""), **filled.values}, "errors": filled.errors}
    return page(request, viewer, "submit.html", context | {"formats": list(FORMATS.values())}, status)


def _read(form: Form) -> tuple[dict[str, str], JobSpec | None, list[str]]:
    """What the fields say, the spec that they make, and what is wrong with them."""
    values = {name: form.text(name) for name in TEXTS} | {name: "1" for name in BOXES if form.checked(name)}
    try:
        return values, JobSpec.model_validate(_document(form)), []
    except ValidationError as error:
        return values, None, _errors(error)
    except ValueError as error:
        return values, None, [str(error)]


def _document(form: Form) -> dict[str, Any]:
    """ValueError for what the fields cannot say."""
    deadline = form.text("deadline")
    return {
        "source": _source(form.text("source"), form.text("revision")),
        "format": form.text("format"),
        "quantize": {
            "exclude": form.lines("exclude"),
            "lm_head": form.checked("lm_head"),
            "dtype": form.text("dtype") or DEFAULTS["dtype"],
            "scales": form.text("scales") or DEFAULTS["scales"],
        },
        "labels": _labels(form.lines("labels")),
        "deadline": datetime.fromisoformat(deadline).replace(tzinfo=UTC) if deadline else None,
        "accept_failed_gate": form.checked("accept_failed_gate"),
        "benchmark": _benchmark(form) if form.text("target") else None,
    }


def _benchmark(form: Form) -> dict[str, Any]:
    limits = {"limit": form.text("prompts"), "max_tokens": form.text("max_tokens")}
    return {
        "target": _source(form.text("target"), form.text("target_revision")),
        "num_speculative_tokens": form.text("num_speculative_tokens"),
        "prompts": {"builtin": "draftmill-1"} | {name: value for name, value in limits.items() if value},
        "gate": {"max_al_drop": drop} if (drop := form.text("max_al_drop")) else {},
    }


def _source(where: str, revision: str) -> dict[str, str]:
    return {"path": where} if where.startswith("/") else {"repo": where, "revision": revision or "main"}


def _labels(lines: list[str]) -> dict[str, str]:
    pairs = [line.partition("=") for line in lines]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise ValueError(f"labels: {wrong[0]!r} is not written as key=value")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _errors(error: ValidationError) -> list[str]:
    said = []
    every = error.errors(include_url=False)
    # Those of the member of a union that was not meant: the form sends every field, and no other.
    meant = [each for each in every if each["type"] not in {"missing", "extra_forbidden"}]
    for each in meant or every:
        # Pydantic puts members of unions between the fields.
        place = ".".join(part for part in map(str, each["loc"]) if _FIELD.fullmatch(part))
        name = next((label for start, label in _PLACES.items() if place.startswith(start)), place)
        said.append(f"{name}: {each['msg']}")
    return list(dict.fromkeys(said))


def _values(spec: JobSpec) -> dict[str, str]:
    """The form that makes this spec, as far as the form can say it."""
    document = spec.model_dump(mode="json")
    values = {
        "source": document["source"].get("path") or document["source"]["repo"],
        "revision": document["source"].get("revision", ""),
        "format": document["format"],
        "exclude": "\n".join(spec.quantize.exclude),
        "dtype": spec.quantize.dtype,
        "scales": spec.quantize.scales,
        "labels": "\n".join(f"{key}={value}" for key, value in spec.labels.items()),
    }
    if spec.quantize.lm_head:
        values["lm_head"] = "1"
    if spec.accept_failed_gate:
        values["accept_failed_gate"] = "1"
    if spec.benchmark is not None:
        benchmark = document["benchmark"]
        values |= {
            "target": benchmark["target"].get("path") or benchmark["target"]["repo"],
            "target_revision": benchmark["target"].get("revision", ""),
            "num_speculative_tokens": str(spec.benchmark.num_speculative_tokens),
            "prompts": str(spec.benchmark.prompts.limit or ""),
            "max_tokens": str(spec.benchmark.prompts.max_tokens),
            "max_al_drop": str(spec.benchmark.gate.max_al_drop),
        }
    return values
