"""The service's side of the ledger: asynchronous."""

import secrets
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from draftmill.batches import ItemFormat
from draftmill.digests import digest
from draftmill.jobs import Job, JobPage, JobSpec
from draftmill.problems import Offender, ProblemError
from draftmill.receipts import ChainHeads
from draftmill.states import JobState
from draftmill_service.ledger import cursors, records
from draftmill_service.ledger.archiving import Archiving, labels
from draftmill_service.ledger.batches import Batches
from draftmill_service.ledger.keys import BATCHES_QUEUE, JOB_ID_IN_BELL, JOBS_QUEUE
from draftmill_service.ledger.measures import Watching
from draftmill_service.ledger.preflights import Preflights
from draftmill_service.ledger.reading import Reading
from draftmill_service.ledger.workers import Presence

IDEMPOTENCY_SECONDS = 24 * 3600
"""How long an Idempotency-Key is remembered."""
_NONCE_SECONDS = 60
_SCAN = 2000


@dataclass(frozen=True)
class Filters:
    """Which jobs to list. Labels are `key` or `key=value`; all must hold."""

    state: JobState | None = None
    format: ItemFormat | None = None
    family: str | None = None
    labels: tuple[str, ...] = ()

    def terms(self) -> list[tuple[str, str]]:
        single = (("state", self.state), ("format", self.format), ("family", self.family))
        return [(name, str(value)) for name, value in single if value is not None] + [
            ("label", label) for label in sorted(set(self.labels))
        ]


class Reaped(NamedTuple):
    """Ids of jobs whose worker was lost or whose deadline passed, by what became of them."""

    queued: list[str]
    failed: list[str]
    canceled: list[str]
    expired: list[str]


class Gauges(NamedTuple):
    states: dict[JobState, int]
    oldest_queued_seconds: float
    """Since the oldest queued job was queued, or its turn in its batch came; 0 when there is none."""
    doorbells: int
    """Messages that no worker has taken."""


class Ledger(Reading, Preflights, Batches, Archiving, Watching, Presence):
    """Jobs, as the API and the reaper see them."""

    async def submit(
        self, spec: JobSpec, *, owner: str, idempotency_key: str | None = None, bell: str = ""
    ) -> tuple[Job, bool]:
        """Queue a job. The flag is False when the key was used before with the same spec; the job is that one then.

        `bell` is the message that rings for it, with JOB_ID_IN_BELL for its id; it reaches the broker's list in the
        same step. ProblemError("idempotency-mismatch") when the key was used with another spec; keys are per owner.
        ProblemError("invalid-request") for a new job whose deadline has passed.
        """
        # Without a key the randomness stands in, so that a retry after a lost reply makes no second job.
        random = secrets.token_hex(6)
        by_key = idempotency_key is not None
        name = digest([owner, idempotency_key]) if by_key else f"once:{random}"
        answer = await self._run(
            "submit",
            name,
            (IDEMPOTENCY_SECONDS if by_key else _NONCE_SECONDS) * 1000,
            digest(spec) if by_key else "",
            owner,
            spec.model_dump_json(),
            spec.format,
            "" if spec.deadline is None else records.milliseconds(spec.deadline),
            random,
            JOBS_QUEUE,
            bell,
            JOB_ID_IN_BELL,
            *labels(spec),
        )
        if answer[0] == "mismatch":
            raise ProblemError("idempotency-mismatch", "the Idempotency-Key belongs to a job with another spec")
        if answer[0] == "past":
            offender = Offender(
                where="$.deadline", message="has passed", value=spec.model_dump(mode="json")["deadline"]
            )
            raise ProblemError("invalid-request", "the deadline has passed", [offender])
        if answer[0] == "created":
            created = records.instant(answer[2])
            queued = {JobState.QUEUED: created}
            made = Job(
                id=answer[1],
                state=JobState.QUEUED,
                spec=spec,
                queue_position=answer[3],
                created_at=created,
                timestamps=queued,
            )
            return made, True
        job = await self.get(answer[1])
        if job is None:
            raise ProblemError("expired", "the job of this Idempotency-Key was removed by retention")
        return job, not by_key

    async def list(
        self, filters: Filters, *, cursor: str | None = None, limit: int = 50, oldest_first: bool = False
    ) -> JobPage:
        """In the order of submission, newest first unless told otherwise. Raises ProblemError("invalid-cursor")."""
        terms = filters.terms()
        order = "oldest" if oldest_first else "newest"
        query = [*terms, order] if oldest_first else terms
        behind = "" if cursor is None else cursors.read(query, cursor)
        indexes = [self._keys.index(*term) for term in terms] or [self._keys.all]
        found: list[str] = []
        while len(found) <= limit:
            ids, behind = await self._run("list", limit + 1 - len(found), behind, _SCAN, order, *indexes)
            found += ids
            if not behind:
                break
        pipe = self._redis.pipeline(transaction=False)
        for job_id in found[:limit]:
            pipe.hgetall(self._keys.job(job_id))
        answers = await self._ask(pipe.execute())
        # A job can be removed between the two calls.
        items = [records.job(job_id, record) for job_id, record in zip(found, answers, strict=False) if record]
        more = cursors.make(query, found[limit - 1]) if len(found) > limit else None
        return JobPage(items=tuple(items), next_cursor=more)

    async def cancel(self, job_id: str) -> Job:
        """A queued job is canceled at once, a running one is told to stop. Canceling twice is no fault.

        ProblemError: not-found, expired; conflict when it ended otherwise.
        """
        before = await self._run("cancel", job_id)
        job = await self._existing(job_id)
        if before in {JobState.SUCCEEDED, JobState.FAILED, JobState.EXPIRED}:
            raise ProblemError("conflict", f"the job is done: {before}")
        return job

    async def retry(self, job_id: str, *, owner: str = "", idempotency_key: str | None = None) -> Job:
        """Queue a job again that failed or was canceled; with a key that did so before, nothing more.

        ProblemError: not-found, expired; conflict when it is not done or has succeeded, or its deadline has passed;
        idempotency-mismatch when the key retried another job. Keys are per owner, apart from those of submissions.
        """
        # Without a key the randomness stands in, so that a repeated request after a lost reply finds what it did.
        by_key = idempotency_key is not None
        name = digest(["retry", owner, idempotency_key]) if by_key else f"once:{secrets.token_hex(6)}"
        before = await self._run("retry", job_id, name, (IDEMPOTENCY_SECONDS if by_key else _NONCE_SECONDS) * 1000)
        if before == "mismatch":
            raise ProblemError("idempotency-mismatch", "the Idempotency-Key belongs to the retry of another job")
        job = await self._existing(job_id)
        if before == "same":
            return job
        if before == "past":
            raise ProblemError("conflict", "the job's deadline has passed; submit it anew with another")
        if before not in {JobState.FAILED, JobState.CANCELED}:
            raise ProblemError("conflict", f"only a job that failed or was canceled can be retried: {before}")
        return job

    async def _existing(self, job_id: str) -> Job:
        job = await self.get(job_id)
        if job is None:
            raise await self.missing(job_id)
        return job

    async def reap(self, max_attempts: int, limit: int = 100) -> Reaped:
        """Take jobs from lost workers: queue them again, or fail them when `max_attempts` attempts were lost; end what
        was canceling; expire what is past its deadline."""
        return Reaped(*await self._run("reap", max_attempts, limit))

    async def due_for_doorbell(self, ring_seconds: float, limit: int = 500, queue: str = JOBS_QUEUE) -> Sequence[str]:
        """Queued jobs whose doorbell rang more than `ring_seconds` ago and whose message is gone; counts as rung now.

        `queue` is the broker's list of messages not yet taken, of single jobs or of items of batches.
        """
        waiting = "queued:batches" if queue == BATCHES_QUEUE else "queued"
        ids: Sequence[str] = await self._run("due", waiting, queue, round(ring_seconds * 1000), limit)
        return ids

    async def lead(self, token: str, seconds: float) -> bool:
        """Be, or stay, the one process that reaps, for `seconds`."""
        return bool(await self._run("lead", token, round(seconds * 1000)))

    async def resign(self, token: str) -> None:
        await self._run("resign", token)

    async def remove(self, job_id: str) -> None:
        """Retention: forget a done job, for good, and remember that there was one.

        ProblemError: not-found, expired; conflict when it is not done.
        """
        job = await self._existing(job_id)
        if await self._run("remove", job_id, *labels(job.spec)) == 0:
            raise ProblemError("conflict", "a job that is not done cannot be removed")

    async def chain_heads(self) -> ChainHeads:
        """Heads of the chains of receipts, as their writers committed them."""
        found = await self._ask(cast("Awaitable[dict[str, str]]", self._redis.hgetall(self._keys.chains)))
        return records.chain_heads(found)

    async def leases(self) -> dict[str, float]:
        """Seconds that are left of every lease, by job; negative for one that the reaper will take."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.zrange(self._keys.leases, 0, -1, withscores=True)
        pipe.time()
        held, now = await self._ask(pipe.execute())
        return {job_id: ends / 1000 - now[0] - now[1] / 1e6 for job_id, ends in held}

    async def gauges(self) -> Gauges:
        pipe = self._redis.pipeline(transaction=False)
        for state in JobState:
            pipe.zcard(self._keys.index("state", state))
        for queue in (JOBS_QUEUE, BATCHES_QUEUE):
            pipe.llen(queue)
        # By when they were queued, and of items by when their turn came; 0 is one that a worker gave back.
        pipe.zrange(self._keys.line, 0, 0, withscores=True)
        pipe.zrangebyscore(self._keys.queued_items, 1, "inf", 0, 1, withscores=True)
        pipe.time()
        *counts, jobs, items, single, item, now = await self._ask(pipe.execute())
        waiting = [since for _, since in (*single, *item)]
        age = max(0.0, now[0] + now[1] / 1e6 - min(waiting) / 1000) if waiting else 0.0
        return Gauges(dict(zip(JobState, counts, strict=True)), age, jobs + items)
