"""Variants beside each other: size against acceptance length, acceptance by position and by category."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from draftmill.jobs import Job
from draftmill.problems import ProblemError
from draftmill_service.ledger import Filters
from draftmill_service.store import Store
from draftmill_service.web.charts.bars import category_bars
from draftmill_service.web.charts.curves import acceptance_curves
from draftmill_service.web.charts.scatter import scatter
from draftmill_service.web.comparison import Group, Measured, groups
from draftmill_service.web.guard import Viewing
from draftmill_service.web.pages import page
from draftmill_service.web.site import Site

router = APIRouter()

MAX_JOBS = 40
LOOKED_AT = 400
"""Newest jobs in which benchmarks are looked for."""
Key = Annotated[str | None, Query(pattern=r"^[0-9a-f]{64}$")]
JobIds = Annotated[list[Annotated[str, StringConstraints(max_length=256)]], Query(max_length=MAX_JOBS)]


@router.get("/compare")
async def compare(request: Request, by: Viewing, job: JobIds = [], group: Key = None) -> Response:  # noqa: B006
    jobs = await _chosen(by.site, job) if job else await _newest(by.site)
    measured, without = await run_in_threadpool(_benchmarks, by.site.store, jobs)
    found = groups(measured)
    if job or group is not None:
        shown = [each for each in found if group in (None, each.key)]
        causes = _by_cause(without if job else [])
        context = {"drawn": [_drawn(each) for each in shown], "without": causes, "chosen": bool(job)}
        return page(request, by, "compare.html", context)
    return page(request, by, "compare_choose.html", {"groups": found, "looked_at": LOOKED_AT})


def _drawn(group: Group) -> dict[str, object]:
    return {
        "group": group,
        "scatter": scatter(group.candidates),
        "curves": acceptance_curves(group.series),
        "bars": category_bars(group.series),
    }


def _by_cause(jobs: list[Job]) -> list[tuple[str, list[Job]]]:
    """Why each has no acceptance length, with the jobs of which that is true."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        if job.spec.benchmark is None:
            cause = "Without a benchmark, and left out"
        elif not job.done:
            cause = "Not measured yet"
        elif job.summary is not None and job.summary.acceptance is not None:
            cause = "Measured, but the record is not in the store"
        else:
            cause = "Ended before it was measured"
        found.setdefault(cause, []).append(job)
    return list(found.items())


async def _chosen(site: Site, ids: list[str]) -> list[Job]:
    return [await site.cases.get(job_id) for job_id in dict.fromkeys(ids)]


async def _newest(site: Site) -> list[Job]:
    found: list[Job] = []
    cursor = None
    while len(found) < LOOKED_AT:
        part = await site.cases.ledger.list(Filters(), cursor=cursor, limit=200)
        found += part.items
        if (cursor := part.next_cursor) is None:
            break
    # A job's own benchmark: one that it was answered from the store with is listed as its own job.
    return [job for job in found if job.done and job.spec.benchmark is not None]


def _benchmarks(store: Store, jobs: list[Job]) -> tuple[list[Measured], list[Job]]:
    """What was measured, and the jobs without a benchmark."""
    measured: list[Measured] = []
    without: list[Job] = []
    for job in jobs:
        try:
            measured.append(Measured(job, store.acceptance(job)))
        except ProblemError:
            without.append(job)
    return measured, without
