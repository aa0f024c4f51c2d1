"""What the ledger knows of work that waits and work that goes on, for whoever watches the service."""

from typing import Any, NamedTuple

from draftmill.jobs import Job
from draftmill.states import Stage, StageState
from draftmill_service.ledger import records
from draftmill_service.ledger.access import Access
from draftmill_service.ledger.keys import BATCHES_QUEUE, JOBS_QUEUE


class Queue(NamedTuple):
    jobs: int
    """Queued, their turn having come."""
    doorbells: int
    """Messages that no worker has taken."""
    oldest_seconds: float
    """Since the oldest of them was queued, or its turn in its batch came; 0 for none."""


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
        queues = (
            (self._keys.queued, self._keys.line, JOBS_QUEUE),
            # An item waits since its turn came; 0 is one that a worker gave back.
            (self._keys.queued_items, self._keys.queued_items, BATCHES_QUEUE),
        )
        for waiting, since, messages in queues:
            pipe.zcard(waiting)
            pipe.llen(messages)
            pipe.zrangebyscore(since, 1, "inf", 0, 1, withscores=True)
        pipe.zrange(self._keys.leases, 0, -1, withscores=True)
        pipe.time()
        *waits, leases, clock = await self._ask(pipe.execute())
        now = clock[0] + clock[1] / 1e6
        held = await self._held([job_id for job_id, _ in leases])
        running = dict.fromkeys(Stage, 0)
        for stage in filter(None, map(_stage, held)):
            running[stage] += 1
        return Measures(
            queues={
                JOBS_QUEUE: _queue(waits[:3], now),
                BATCHES_QUEUE: _queue(waits[3:], now),
            },
            running=running,
            between=len(held) - sum(running.values()),
            oldest_lease_seconds=max((now - job.attempts[-1].started_at.timestamp() for job in held), default=0.0),
            least_remaining_seconds=min((ends / 1000 - now for _, ends in leases), default=None),
        )

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


def _queue(answers: list[Any], now: float) -> Queue:
    jobs, doorbells, oldest = answers
    return Queue(jobs, doorbells, max(0.0, now - oldest[0][1] / 1000) if oldest else 0.0)
