"""The route that answers a plan before there is a job."""

from typing import Self

from fastapi import APIRouter, Request
from pydantic import model_validator
from starlette.responses import Response

from draftmill._model import Model
from draftmill.formats import Format
from draftmill.jobs import JobSpec, PathSource, QuantizeOptions, RepoSource, check_scale_search
from draftmill.plans import Preflight
from draftmill_service.api.bodies import documented_body, read_body
from draftmill_service.api.deps import Writer, answer
from draftmill_service.api.problems import documented

router = APIRouter(tags=["preflight"])


class PreflightRequest(Model):
    """The part of a job's spec that a plan depends on."""

    source: RepoSource | PathSource
    format: Format
    quantize: QuantizeOptions = QuantizeOptions()

    @model_validator(mode="after")
    def _scale_search(self) -> Self:
        check_scale_search(self.format, self.quantize)
        return self


@router.post(
    "/v1/preflight",
    operation_id="preflight",
    summary="The plan for a repository, from headers alone",
    description="Downloads no weights. `ok` is false, with the problem, where a job would be refused.",
    response_model=Preflight,
    openapi_extra=documented_body(PreflightRequest),
    responses=documented("invalid-request", "scale-search-refused", "payload-too-large", "preflight-timeout"),
)
async def preflight(request: Request, by: Writer) -> Response:
    body = await read_body(request, PreflightRequest)
    spec = JobSpec(source=body.source, format=body.format, quantize=body.quantize)
    return answer(await by.cases.preflight(spec))
