"""A job's log: the last lines in the page, earlier ones by the page, new ones as server-sent events."""

from collections.abc import AsyncIterator
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Header, Path, Query
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import StringConstraints
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from draftmill.jobs import Job
from draftmill.reports import Event, EventKind
from draftmill_service.ledger import Ledger
from draftmill_service.web.guard import Viewing
from draftmill_service.web.pages import page, render
from draftmill_service.web.site import Site
from draftmill_service.web.words import clock, plain

router = APIRouter(prefix="/jobs/{job_id}")

StreamId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,16}(-[0-9]{1,16})?$")]
JobId = Annotated[str, Path(max_length=256)]
START = "0"
MAX_LINES = 200
MAX_CHARS = 40_000
"""Of the log in one page."""
_LOOK = 1000
TICK_SECONDS = 1.0
RETRY_MILLISECONDS = 1000
"""How long a browser waits before it asks again for a stream that broke."""
END = "end"


class Line(NamedTuple):
    id: str
    time: str
    level: str
    stage: str
    text: str


class Tail(NamedTuple):
    lines: list[Line]
    after: str
    """Id of the newest event seen: where a stream goes on."""
    earlier: str | None
    """Id before which there are more events; None when the lines begin with the first."""


def line(event: Event) -> Line | None:
    """None for progress, which the stages show."""
    data = event.data
    stage, level = str(data.get("stage") or ""), "note"
    match event.kind:
        case EventKind.LOG:
            level, text = str(data.get("level")), str(data.get("message"))
        case EventKind.STATE:
            text = f"job {data.get('state')}" + (f": {data['reason']}" if data.get("reason") else "")
        case EventKind.STAGE:
            text = str(data.get("state"))
        case EventKind.ATTEMPT:
            text = f"attempt {data.get('attempt')} " + str(data.get("outcome") or f"on {data.get('worker')}")
        case _:
            return None
    return Line(event.id, clock(event.time), level, plain(stage), plain(text))


async def tail(ledger: Ledger, job: Job, before: str | None = None) -> Tail:
    """The last lines, or the last ones before an event."""
    found = await ledger.events_before(job.id, before, _LOOK)
    lines: list[Line] = []
    chars, oldest = 0, None
    for event in reversed(found.items):
        one = line(event)
        if one is not None and (len(lines) == MAX_LINES or (lines and chars + len(one.text) > MAX_CHARS)):
            break
        oldest = event.id
        if one is not None:
            lines.append(one)
            chars += len(one.text)
    whole = not found.items or (oldest == found.items[0].id and len(found.items) < _LOOK)
    return Tail(lines[::-1], found.last_id, None if whole else oldest)


@router.get("/log")
async def earlier(
    request: Request, job_id: JobId, by: Viewing, before: Annotated[StreamId | None, Query()] = None
) -> Response:
    job = await by.site.cases.get(job_id)
    shown = await tail(by.site.cases.ledger, job, before)
    return page(request, by, "job_log.html", {"tab": "log", "job": job, "log": shown, "before": before})


@router.get("/log.txt")
async def text(job_id: JobId, by: Viewing) -> Response:
    """All of it, as plain text."""
    await by.site.cases.get(job_id)
    disposition = {"Content-Disposition": f'attachment; filename="{job_id}.log"'}
    return StreamingResponse(_text(by.site.cases.ledger, job_id), media_type="text/plain", headers=disposition)


async def _text(ledger: Ledger, job_id: str) -> AsyncIterator[str]:
    after = START
    while (found := await ledger.events(job_id, after)).items:
        for event in found.items:
            if (one := line(event)) is not None:
                yield f"{event.time.isoformat()} {one.level:7} {one.stage:9} {one.text}\n"
        after = found.last_id


@router.get("/events")
async def events(
    job_id: JobId,
    by: Viewing,
    after: StreamId = START,
    last_event_id: Annotated[StreamId, Header(alias="Last-Event-ID")] = START,
) -> Response:
    """Lines as elements of the log's list. A browser that comes back names the last one it has in Last-Event-ID."""
    await by.site.cases.get(job_id)
    body = _stream(by.site, job_id, after if last_event_id == START else last_event_id)
    return EventSourceResponse(body, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


async def _stream(site: Site, job_id: str, after: str) -> AsyncIterator[bytes]:
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    quiet = 0.0
    async for event in site.cases.ledger.follow(job_id, after, idle_seconds=TICK_SECONDS):
        if site.stopping.is_set():
            return
        if isinstance(event, Event):
            one = line(event)
            if one is not None:
                # One line: SSE would end the field at the first line break.
                html = render("log_line.html", line=one).strip()
                yield format_sse_event(data_str=html, event="line", id=event.id)
                quiet = 0.0
                continue
        quiet += TICK_SECONDS
        if quiet >= site.keepalive_seconds:
            yield KEEPALIVE_COMMENT
            quiet = 0.0
    yield format_sse_event(data_str="done", event=END)
