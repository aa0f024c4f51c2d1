"""What runs now: queues and workers; and what runs at all: the capability table."""

from collections import defaultdict
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from draftmill.formats import FORMATS
from draftmill.jobs import Attempt, Job, StageRecord
from draftmill.states import JobState, StageState
from draftmill_service.capabilities import capabilities
from draftmill_service.ledger import Filters, Ledger
from draftmill_service.ledger.workers import Present
from draftmill_service.web.charts.timeline import Row, timeline
from draftmill_service.web.guard import Viewing
from draftmill_service.web.pages import page, part_asked, unchanged

router = APIRouter()

LIVE = "queues-live"


@dataclass(frozen=True)
class AtWork:
    job: Job
    attempt: Attempt
    stage: StageRecord | None
    row: Row | None
    lease: float | None
    """Seconds that are left of it."""


@dataclass(frozen=True)
class Worker:
    name: str
    present: Present | None
    """None for one that holds a job and does not show itself: it is gone, or cannot reach the ledger."""
    at_work: tuple[AtWork, ...]


@router.get("/queues")
async def queues(request: Request, by: Viewing) -> Response:
    ledger = by.site.cases.ledger
    gauges = await ledger.gauges()
    workers = await _workers(ledger)
    waiting = await ledger.list(Filters(state=JobState.QUEUED), limit=10, oldest_first=True)
    mark, same = unchanged(request, (gauges.states, gauges.doorbells, workers, waiting))
    part = part_asked(request) == LIVE
    if part and same:
        return Response(status_code=204)
    context = {"gauges": gauges, "workers": workers, "waiting": waiting, "mark": mark}
    return page(request, by, "queues_live.html" if part else "queues.html", context)


async def _workers(ledger: Ledger) -> list[Worker]:
    """Who is there, and who holds a job."""
    present = {each.name: each for each in await ledger.workers()}
    leases = {job_id: round(seconds) for job_id, seconds in (await ledger.leases()).items()}
    running = [
        job
        for state in (JobState.RUNNING, JobState.CANCELING)
        for job in (await ledger.list(Filters(state=state), limit=200)).items
    ]
    at_work: defaultdict[str, list[AtWork]] = defaultdict(list)
    for job in running:
        for attempt in job.attempts:
            if attempt.ended_at is None:
                at_work[attempt.worker].append(_at_work(job, attempt, leases))
    return [Worker(name, present.get(name), tuple(at_work[name])) for name in sorted({*present, *at_work})]


def _at_work(job: Job, attempt: Attempt, leases: dict[str, int]) -> AtWork:
    stage = next((record for record in attempt.stages if record.state is StageState.RUNNING), None)
    rows = timeline(job) if stage is not None else []
    row = next((row for row in reversed(rows) if stage is not None and row.name == stage.name), None)
    return AtWork(job, attempt, stage, row, leases.get(job.id))


@router.get("/capabilities")
async def capability_table(request: Request, by: Viewing) -> Response:
    found = await run_in_threadpool(capabilities, by.site.data_dir)
    return page(request, by, "capabilities.html", {"found": found, "formats": list(FORMATS.values())})
