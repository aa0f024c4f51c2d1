"""Routes about the service itself."""

from typing import Literal

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import TypeAdapter
from starlette.responses import Response

from draftmill._model import Model
from draftmill.formats import FORMATS, FormatSpec
from draftmill.problems import ProblemError
from draftmill.states import JobState
from draftmill_service.api.deps import MetricsReader, Reader, answer, services
from draftmill_service.api.problems import documented

router = APIRouter(tags=["service"])

_FORMATS = TypeAdapter(list[FormatSpec]).dump_json(list(FORMATS.values()))


class Alive(Model):
    status: Literal["alive"] = "alive"


class Ready(Model):
    status: Literal["ready"] = "ready"
    queued: int
    oldest_queued_seconds: float
    """Since the oldest queued job was queued; grows when no worker takes jobs."""


@router.get(
    "/v1/formats",
    operation_id="list_formats",
    summary="The formats that engines read",
    response_model=list[FormatSpec],
    responses=documented(),
)
async def formats(_: Reader) -> Response:
    return Response(_FORMATS, media_type="application/json")


@router.get("/healthz", operation_id="healthz", summary="The process lives", response_model=Alive)
async def healthz() -> Response:
    return answer(Alive())


@router.get(
    "/readyz",
    operation_id="readyz",
    summary="The ledger answers",
    response_model=Ready,
    responses={503: documented()[503]},
)
async def readyz(request: Request) -> Response:
    ledger = services(request).cases.ledger
    policy = await ledger.eviction_policy()
    if policy is not None:
        raise ProblemError("ledger-unavailable", f"Redis may drop jobs: maxmemory-policy is {policy}, not noeviction")
    gauges = await ledger.gauges()
    queued = gauges.states[JobState.QUEUED]
    return answer(Ready(queued=queued, oldest_queued_seconds=gauges.oldest_queued_seconds))


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Figures for Prometheus",
    response_class=Response,
    responses={
        200: {"description": "Text format.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **documented(),
    },
)
async def metrics(by: MetricsReader) -> Response:
    gauges, measures = await by.cases.ledger.gauges(), await by.cases.ledger.measures()
    return Response(by.services.metrics.exposition(gauges, measures), media_type=CONTENT_TYPE_LATEST)
