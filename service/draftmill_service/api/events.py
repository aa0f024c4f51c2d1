"""Routes of a job's events, as a page or as a stream."""

import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import Field, StringConstraints
from starlette.responses import Response

from draftmill._model import Model
from draftmill.reports import LEDGER_AWAY, Event, EventKind, EventPage
from draftmill_service.api.deps import JobId, Reader, Services, answer
from draftmill_service.api.problems import documented
from draftmill_service.ledger import LedgerUnavailable

router = APIRouter(prefix="/v1/jobs", tags=["events"])

# Sixteen digits hold every time and count there will be, and fit the server's 64 bits.
StreamId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,16}(-[0-9]{1,16})?$")]
START = "0"
EVENT_STREAM = "text/event-stream"
TICK_SECONDS = 1.0
"""How long a stream may take to notice that the service stops."""


# As FastAPI documents the streams it makes itself.
_SSE_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string", "enum": [kind.value for kind in EventKind]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/Event"},
        },
    },
}


class EventsQuery(Model):
    after: StreamId = START
    """Only events behind this id."""
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1000
    """Of a page; a stream has no end but the job's."""
    stream: bool = False
    """Answer an event stream, as `Accept: text/event-stream` does."""


@router.get(
    "/{job_id}/events",
    operation_id="job_events",
    summary="A job's events",
    description=(
        "A page, or with `Accept: text/event-stream` or `stream=true` a stream of server-sent events: `id` is the "
        "event's id, `event` its kind, `data` the Event as JSON. `Last-Event-ID` resumes. The stream ends after the "
        f"event that ends the job. An event `{LEDGER_AWAY}` without data says that the stream waits for the ledger."
    ),
    response_model=EventPage,
    responses={
        200: {
            "description": "A page of events, or the stream.",
            "content": {EVENT_STREAM: {"itemSchema": _SSE_EVENT}},
        },
        **documented("invalid-request", "not-found", "expired"),
    },
)
async def events(
    job_id: JobId,
    query: Annotated[EventsQuery, Query()],
    request: Request,
    by: Reader,
    last_event_id: Annotated[StreamId, Header(alias="Last-Event-ID")] = START,
) -> Response:
    await by.cases.get(job_id)
    after = query.after if last_event_id == START else last_event_id
    if query.stream or EVENT_STREAM in request.headers.get("accept", ""):
        body = _stream(by.services, job_id, after)
        return EventSourceResponse(body, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
    return answer(await by.cases.ledger.events(job_id, after, query.limit))


async def _stream(services: Services, job_id: str, after: str) -> AsyncIterator[bytes]:
    keepalive = services.settings.keepalive_seconds
    quiet_since = time.monotonic()
    away = False
    async for event in services.cases.ledger.follow(job_id, after, idle_seconds=min(TICK_SECONDS, keepalive)):
        if services.stopping.is_set():
            return
        if isinstance(event, Event):
            # ASCII: Unicode's other line ends would break the field into two.
            data = event.model_dump_json(ensure_ascii=True)
            yield format_sse_event(data_str=data, event=event.kind, id=event.id)
            away = False
        elif isinstance(event, LedgerUnavailable) and not away:
            # Without data: browsers drop it, this API's clients tell.
            yield f"event: {LEDGER_AWAY}\n\n".encode()
            away = True
        elif time.monotonic() - quiet_since < keepalive:
            continue
        else:
            yield KEEPALIVE_COMMENT
        quiet_since = time.monotonic()
