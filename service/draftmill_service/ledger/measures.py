"""What the ledger knows of work that waits and work that goes on, for whoever watches the service."""

from collections.abc import Awaitable
from typing import NamedTuple, cast

from draftmill.jobs import Job
from draftmill.states import Stage, StageState
from draftmill_service.ledger import records
from draftmill_service.ledger.access import Access
from draftmill_service.ledger.keys import BATCHES_QUEUE, JOBS_QUEUE

_LOOK = 1000
"""Among so many jobs of a queue the oldest is looked for."""


class Queue(NamedTuple):
    jobs: int
    """Queued, their turn having come."""
    doorbells: int
    """Messages that no worker has taken."""
    oldest_seconds: float
    """Since the oldest of them was queued; 0 for none."""


class Measures(NamedTuple):
    queues: dict[str, Queue]
    """By the queue's name."""
    running: dict[Stage, int]
    """Jobs that a worker holds, by the stage that runs."""
    between: int
    """Jobs that a worker holds, between stages or waiting for devices."""
    oldest_lease_seconds: float
    """Since the claim of the attempt that runs longest; 0 for none."""
    least_remaining_seconds: float | None
    """Of the lease that ends first; below 0 its worker is lost and nobody reaps. None for none."""


class Watching(Access):
    async def measures(self) -> Measures:
        pipe = self._redis.pipeline(transaction=False)
        for waiting, messages in ((self._keys.queued, JOBS_QUEUE), (self._keys.queued_items, BATCHES_QUEUE)):
            pipe.zcard(waiting)
            pipe.llen(messages)
            pipe.zrange(waiting, 0, _LOOK - 1)
        pipe.zrange(self._keys.leases, 0, -1, withscores=True)
        pipe.time()
        *queues, leases, clock = await self._ask(pipe.execute())
        now = clock[0] + clock[1] / 1e6
        singles, items = queues[:3], queues[3:]
        held = await self._held([job_id for job_id, _ in leases])
        running = dict.fromkeys(Stage, 0)
        for stage in filter(None, map(_stage, held)):
            running[stage] += 1
        return Measures(
            queues={
                JOBS_QUEUE: Queue(singles[0], singles[1], await self._age(singles[2], now)),
                BATCHES_QUEUE: Queue(items[0], items[1], await self._age(items[2], now)),
            },
            running=running,
            between=len(held) - sum(running.values()),
            oldest_lease_seconds=max((now - job.attempts[-1].started_at.timestamp() for job in held), default=0.0),
            least_remaining_seconds=min((ends / 1000 - now for _, ends in leases), default=None),
        )

    async def _age(self, waiting: list[str], now: float) -> float:
        """Ids sort by submission."""
        if not waiting:
            return 0.0
        since = await self._ask(
            cast("Awaitable[str | None]", self._redis.hget(self._keys.job(min(waiting)), "t:queued"))
        )
        return max(0.0, now - int(since) / 1000) if since else 0.0

    async def _held(self, ids: list[str]) -> list[Job]:
        pipe = self._redis.pipeline(transaction=False)
        for job_id in ids:
            pipe.hgetall(self._keys.job(job_id))
        found = await self._ask(pipe.execute())
        jobs = [records.job(job_id, record) for job_id, record in zip(ids, found, strict=True) if record]
        # One may have ended between the two calls.
        return [job for job in jobs if not job.done and job.attempts]


def _stage(job: Job) -> Stage | None:
    return next((record.name for record in job.attempts[-1].stages if record.state is StageState.RUNNING), None)
