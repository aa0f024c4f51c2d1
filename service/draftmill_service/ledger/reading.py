"""Reading one job: its record and its events."""

import asyncio
from collections.abc import AsyncIterator

from draftmill.jobs import JOB_ID, Job
from draftmill.problems import ProblemError
from draftmill.reports import Event, EventPage
from draftmill_service.ledger import records
from draftmill_service.ledger.access import Access
from draftmill_service.ledger.errors import LedgerUnavailable


class Reading(Access):
    async def get(self, job_id: str) -> Job | None:
        if not JOB_ID.fullmatch(job_id):
            return None
        pipe = self._redis.pipeline(transaction=False)
        pipe.hgetall(self._keys.job(job_id))
        pipe.zrank(self._keys.line, job_id)
        record, rank = await self._ask(pipe.execute())
        return records.job(job_id, record, rank) if record else None

    async def removed(self, job_id: str) -> bool:
        """Whether there was such a job, and retention removed it."""
        return bool(await self._ask(self._redis.exists(self._keys.tombstone(job_id))))

    async def missing(self, job_id: str) -> ProblemError:
        """The problem to raise for a job that `get` does not find."""
        if JOB_ID.fullmatch(job_id) and await self.removed(job_id):
            return ProblemError("expired", f"job {job_id} was removed by retention")
        return ProblemError("not-found", "there is no job of this id")

    async def events(self, job_id: str, after: str = "0", limit: int = 1000) -> EventPage:
        """Events behind the stream id `after`, oldest first."""
        entries = await self._ask(self._redis.xrange(self._keys.events(job_id), min=f"({after}", count=limit))
        items = tuple(records.event(job_id, entry_id, fields) for entry_id, fields in entries)
        return EventPage(items=items, last_id=items[-1].id if items else after)

    async def events_before(self, job_id: str, before: str | None = None, limit: int = 1000) -> EventPage:
        """The last events before the stream id `before`, or of all, oldest first."""
        bound = "+" if before is None else f"({before}"
        entries = await self._ask(self._redis.xrevrange(self._keys.events(job_id), max=bound, count=limit))
        items = tuple(records.event(job_id, entry_id, fields) for entry_id, fields in reversed(entries))
        return EventPage(items=items, last_id=items[-1].id if items else "0")

    async def follow(
        self, job_id: str, after: str = "0", idle_seconds: float = 5.0
    ) -> AsyncIterator[Event | LedgerUnavailable | None]:
        """Events behind `after` as they come, to the end of the job; None whenever `idle_seconds` passed without one.

        A Redis that goes away is waited for; each look that it does not answer gives the error.
        Ends also when the job is removed.
        """
        while True:
            try:
                # Before the wait: the one who resumes may have seen the end.
                if await self._over(job_id, after):
                    return
                batch = await self._next_events(job_id, after, idle_seconds)
                for event in batch:
                    after = event.id
                    yield event
                if not batch:
                    yield None
            except LedgerUnavailable as error:
                yield error
                await asyncio.sleep(0.5)

    async def _next_events(self, job_id: str, after: str, idle_seconds: float) -> tuple[Event, ...]:
        key = self._keys.events(job_id)
        read = self._redis.xread({key: after}, count=500, block=max(1, round(idle_seconds * 1000)))
        streams = await self._ask(read, self._patience + idle_seconds)
        entries = streams[0][1] if streams else []
        return tuple(records.event(job_id, entry_id, fields) for entry_id, fields in entries)

    async def _over(self, job_id: str, after: str) -> bool:
        """Whether the job is done and nothing is left behind `after`. A retried job goes on."""
        job = await self.get(job_id)
        if job is None:
            return True
        return job.done and not (await self.events(job_id, after, limit=1)).items
