"""Routes of what a job made: plan, verify report, files of the variant."""

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from draftmill.benchmarks import Acceptance
from draftmill.choices import Choice
from draftmill.heads import HeadPlan
from draftmill.plans import Plan
from draftmill.problems import ProblemError
from draftmill.reports import Artifacts, VerifyReport
from draftmill_service.api import problems
from draftmill_service.api.deps import JobId, Reader, answer
from draftmill_service.api.problems import documented

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["artifacts"])

_NONE_YET = documented("invalid-request", "not-found", "expired", "not-ready")
_NO_VARIANT = documented("invalid-request", "not-found", "expired", "not-ready", "verify-failed", "gate-failed")
GATE = "Draftmill-Gate"
"""Header of every file: `passed` or `failed` by the newest benchmark of the variant, `none` without one."""


@router.get("/plan", operation_id="job_plan", summary="Every tensor's fate", response_model=Plan, responses=_NONE_YET)
async def plan(job_id: JobId, by: Reader) -> Response:
    job = await by.cases.get(job_id)
    return answer(await run_in_threadpool(by.store.plan, job))


@router.get(
    "/head",
    operation_id="job_head",
    summary="What a job with `format: keep` rewrote, and how far it is from the original",
    response_model=HeadPlan,
    responses=_NONE_YET,
)
async def head(job_id: JobId, by: Reader) -> Response:
    job = await by.cases.get(job_id)
    return answer(await run_in_threadpool(by.store.head, job))


@router.get(
    "/verify",
    operation_id="job_verify",
    summary="The verify report, also of a variant that failed",
    response_model=VerifyReport,
    responses=_NONE_YET,
)
async def verify(job_id: JobId, by: Reader) -> Response:
    job = await by.cases.get(job_id)
    return answer(await run_in_threadpool(by.store.verify_report, job))


@router.get(
    "/acceptance",
    operation_id="job_acceptance",
    summary="Acceptance length beside the control, and the gate's verdict",
    response_model=Acceptance,
    responses=_NONE_YET,
)
async def acceptance(job_id: JobId, by: Reader) -> Response:
    job = await by.cases.get(job_id)
    return answer(await run_in_threadpool(by.store.acceptance, job))


@router.get(
    "/choice",
    operation_id="job_choice",
    summary="What a job with `format: auto` weighed, and what it chose",
    response_model=Choice,
    responses=_NONE_YET,
)
async def choice(job_id: JobId, by: Reader) -> Response:
    job = await by.cases.get(job_id)
    return answer(await run_in_threadpool(by.store.choice, job))


@router.get(
    "/artifacts",
    operation_id="job_artifacts",
    summary="The sealed variant's files with their SHA-256, and the newest verdict of a gate",
    response_model=Artifacts,
    responses=_NO_VARIANT,
)
async def artifacts(job_id: JobId, by: Reader) -> Response:
    job = await by.cases.get(job_id)
    return answer(await run_in_threadpool(by.store.artifacts, job))


_FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.head("/artifacts/{path:path}", include_in_schema=False)
@router.get(
    "/artifacts/{path:path}",
    operation_id="job_artifact",
    summary="One file of the sealed variant",
    description=(
        "Takes `Range` and `If-Range`; the ETag is the file's SHA-256. `Draftmill-Gate` is the newest verdict of a gate"
        " on the variant: `passed`, `failed` or `none`."
    ),
    response_class=FileResponse,
    responses={
        200: {"description": "The file.", "content": _FILE},
        206: {"description": "The range.", "content": _FILE},
        **documented(
            "invalid-request",
            "not-found",
            "expired",
            "not-ready",
            "verify-failed",
            "gate-failed",
            "range-not-satisfiable",
        ),
    },
)
async def artifact(job_id: JobId, path: Annotated[str, Path(max_length=4096)], by: Reader) -> Response:
    job = await by.cases.get(job_id)
    found, listed, acceptance = await run_in_threadpool(by.store.artifact, job, path)
    return Artifact(
        found,
        filename=found.name,
        media_type="application/octet-stream",
        headers={
            "ETag": f'"{listed.sha256}"',
            # Sealed files never change.
            "Cache-Control": "private, max-age=31536000, immutable",
            GATE: "none" if acceptance is None else acceptance.verdict,
        },
    )


class Artifact(FileResponse):
    """FileResponse that ignores a malformed range (RFC 9110, 14.2) and refuses one outside the file with a problem."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: Message | None = None

        async def watched(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] >= 400:
                refused = message
            if refused is None:
                await send(message)

        await super().__call__(scope, receive, watched)
        if refused is None:
            return
        if refused["status"] == 416:
            await _refusal(scope, refused)(scope, receive, send)
            return
        unranged = [(name, value) for name, value in scope["headers"] if name != b"range"]
        await super().__call__({**scope, "headers": unranged}, receive, send)


def _refusal(scope: Scope, refused: Message) -> Response:
    problem = ProblemError("range-not-satisfiable", "the Range header does not fit the file").problem
    headers = {name.decode(): value.decode() for name, value in refused["headers"] if name.lower() == b"content-range"}
    return problems.answer(problem, request_id=scope.get("draftmill.request_id"), headers=headers)
