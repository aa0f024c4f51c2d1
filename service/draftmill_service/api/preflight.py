"""The route that answers a plan before there is a job."""

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from draftmill._model import Model
from draftmill.formats import Format
from draftmill.jobs import JobSpec, PathSource, QuantizeOptions, RepoSource
from draftmill.plans import Preflight
from draftmill_service.api.bodies import body_of, documented_body
from draftmill_service.api.deps import Wired, Writer, answer
from draftmill_service.api.problems import documented

router = APIRouter(tags=["preflight"])


class PreflightRequest(Model):
    """The part of a job's spec that a plan depends on."""

    source: RepoSource | PathSource
    format: Format
    quantize: QuantizeOptions = QuantizeOptions()


@router.post(
    "/v1/preflight",
    operation_id="preflight",
    summary="The plan for a repository, from headers alone",
    description="Downloads no weights. `ok` is false, with the problem, where a job would be refused.",
    response_model=Preflight,
    openapi_extra=documented_body(PreflightRequest),
    responses=documented("invalid-request", "payload-too-large", "preflight-timeout"),
)
async def preflight(
    _: Writer, body: Annotated[PreflightRequest, Depends(body_of(PreflightRequest))], wired: Wired
) -> Response:
    spec = JobSpec(source=body.source, format=body.format, quantize=body.quantize)
    return answer(await wired.cases.preflight(spec))
