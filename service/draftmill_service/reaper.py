"""The reaper: takes jobs from lost workers, expires what is late, rings again for what nobody heard, and takes the
steps of batches whose request died.

Each of its steps is one atomic script, so two reapers at once do no harm; one leads, by a lock, to save the work.
"""

import asyncio
import logging
import secrets
from collections import Counter
from itertools import chain

from draftmill_service.doorbell import Doorbell
from draftmill_service.ledger import Ledger, LedgerUnavailable, Reaped
from draftmill_service.ledger.keys import BATCHES_QUEUE, JOBS_QUEUE

logger = logging.getLogger(__name__)

BATCH = 100
IDLE_SECONDS = 2.0
"""A batch with steps left that nobody took for so long is the reaper's."""


class Reaper:
    def __init__(
        self, ledger: Ledger, doorbell: Doorbell, *, every: float, max_attempts: int, ring_seconds: float
    ) -> None:
        self._ledger = ledger
        self._doorbell = doorbell
        self._every = every
        self._max_attempts = max_attempts
        self._ring_seconds = ring_seconds
        self._token = secrets.token_hex(16)
        self.counts: Counter[str] = Counter()
        """What it did since the start: queued, failed, canceled, expired, rung."""

    async def run(self) -> None:
        """Until canceled. Waits for a ledger that is away."""
        away = False
        try:
            while True:
                try:
                    await self._round()
                    away = False
                except LedgerUnavailable:
                    if not away:
                        logger.warning("the reaper waits for the ledger")
                    away = True
                except Exception:
                    # One bad record must not keep every other job waiting.
                    logger.exception("a round of the reaper failed")
                await asyncio.sleep(self._every)
        finally:
            await self._resign()

    async def _resign(self) -> None:
        try:
            await self._ledger.resign(self._token)
        except LedgerUnavailable:
            logger.warning("the reaper's lock is left to run out")

    async def _round(self) -> None:
        if not await self._ledger.lead(self._token, max(3 * self._every, 5.0)):
            return
        while any(self._count(reaped := await self._ledger.reap(self._max_attempts, BATCH))):
            if len(list(chain(*reaped))) < BATCH:
                break
        for queue in (JOBS_QUEUE, BATCHES_QUEUE):
            due = await self._ledger.due_for_doorbell(self._ring_seconds, queue=queue)
            for job_id in due:
                self._doorbell.ring(job_id, queue)
            self.counts["rung"] += len(due)
        for batch_id in await self._ledger.batches_todo(IDLE_SECONDS, BATCH):
            await self._ledger.work_on(batch_id)

    def _count(self, reaped: Reaped) -> Reaped:
        for what, ids in reaped._asdict().items():
            self.counts[what] += len(ids)
            for job_id in ids:
                logger.warning("reaped", extra={"job": job_id, "became": what})
        return reaped
