"""Routes of jobs."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field, StringConstraints
from starlette.responses import Response

from draftmill._model import Model
from draftmill.formats import Format
from draftmill.jobs import Job, JobPage, JobSpec
from draftmill.plans import Family
from draftmill.states import JobState
from draftmill_service.api.bodies import documented_body, read_body
from draftmill_service.api.deps import JobId, Reader, Writer, answer, writer
from draftmill_service.api.idempotency import REPLAYED, RetryKey, documented_key, job_key
from draftmill_service.api.problems import documented
from draftmill_service.ledger import Filters

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

Label = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?(=[^\x00]*)?$", max_length=320),
]


class ListQuery(Model):
    state: JobState | None = None
    format: Format | None = None
    family: Family | None = None
    label: Annotated[list[Label], Field(max_length=16)] = Field(default_factory=list)
    """`key` or `key=value`; may be given several times, all must hold."""
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    """`next_cursor` of the page before, with the same filters."""


def _made(description: str, **headers: str) -> dict[str, Any]:
    return {
        "model": Job,
        "description": description,
        "headers": {name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()},
    }


@router.post(
    "",
    operation_id="submit_job",
    summary="Submit a job",
    status_code=201,
    response_model=Job,
    openapi_extra=documented_body(JobSpec) | documented_key(),
    responses={
        200: _made(
            "The Idempotency-Key was used before with this spec; this is that job.", **{REPLAYED: "Always `true`."}
        ),
        201: _made("The job is queued.", Location="Path of the job."),
        **documented(
            "invalid-request",
            "field-not-supported",
            "scale-search-refused",
            "idempotency-mismatch",
            "payload-too-large",
        ),
    },
)
async def submit(request: Request) -> Response:
    by, key = await writer(request), job_key(request)
    spec = await read_body(request, JobSpec)
    job, created = await by.cases.submit(spec, owner=by.key.id, idempotency_key=key)
    if created:
        return answer(job, 201, {"Location": f"/v1/jobs/{job.id}"})
    return answer(job, 200, {REPLAYED: "true"})


@router.get(
    "",
    operation_id="list_jobs",
    summary="List jobs, newest first",
    response_model=JobPage,
    responses=documented("invalid-request", "invalid-cursor"),
)
async def list_jobs(query: Annotated[ListQuery, Query()], by: Reader) -> Response:
    filters = Filters(query.state, query.format, query.family, tuple(query.label))
    return answer(await by.cases.ledger.list(filters, cursor=query.cursor, limit=query.limit))


@router.get(
    "/{job_id}",
    operation_id="get_job",
    summary="One job",
    response_model=Job,
    responses=documented("invalid-request", "not-found", "expired"),
)
async def get(job_id: JobId, by: Reader) -> Response:
    return answer(await by.cases.get(job_id))


@router.post(
    "/{job_id}/cancel",
    operation_id="cancel_job",
    summary="Cancel a job",
    description="A queued job is canceled at once; a running one is `canceling` until its worker has stopped.",
    response_model=Job,
    responses=documented("invalid-request", "not-found", "expired", "conflict"),
)
async def cancel(job_id: JobId, by: Writer) -> Response:
    return answer(await by.cases.cancel(job_id))


@router.post(
    "/{job_id}/retry",
    operation_id="retry_job",
    summary="Queue a job again that failed or was canceled",
    description="With an Idempotency-Key that retried this job before, nothing more happens.",
    response_model=Job,
    responses=documented("invalid-request", "not-found", "expired", "conflict", "idempotency-mismatch"),
)
async def retry(job_id: JobId, by: Writer, idempotency_key: RetryKey = None) -> Response:
    return answer(await by.cases.retry(job_id, owner=by.key.id, idempotency_key=idempotency_key))
