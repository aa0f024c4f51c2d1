"""What a caller can do to jobs and batches: the ledger's transitions, and a ring where a worker should look."""

from dataclasses import dataclass

from draftmill.batches import Batch, BatchSpec
from draftmill.jobs import Job, JobSpec
from draftmill.plans import Preflight
from draftmill.problems import ProblemError
from draftmill_service.doorbell import Doorbell
from draftmill_service.ledger import Ledger


@dataclass(frozen=True)
class UseCases:
    ledger: Ledger
    doorbell: Doorbell
    preflight_seconds: float
    batch_running: int = 8
    """Items of one batch that may be with workers at once."""

    async def submit(self, spec: JobSpec, *, owner: str, idempotency_key: str | None) -> tuple[Job, bool]:
        """The job, and whether this call made it. Raises ProblemError("idempotency-mismatch")."""
        return await self.ledger.submit(
            spec, owner=owner, idempotency_key=idempotency_key, bell=self.doorbell.for_new_jobs
        )

    async def get(self, job_id: str) -> Job:
        """Raises ProblemError("not-found") or ("expired")."""
        job = await self.ledger.get(job_id)
        if job is None:
            raise await self.ledger.missing(job_id)
        return job

    async def cancel(self, job_id: str) -> Job:
        """Raises ProblemError: not-found, expired, conflict."""
        return await self.ledger.cancel(job_id)

    async def retry(self, job_id: str, *, owner: str = "", idempotency_key: str | None = None) -> Job:
        """Raises ProblemError: not-found, expired, conflict, idempotency-mismatch."""
        job = await self.ledger.retry(job_id, owner=owner, idempotency_key=idempotency_key)
        if job.batch is None:
            self.doorbell.ring(job.id)
        return job

    async def submit_batch(self, spec: BatchSpec, *, owner: str, idempotency_key: str | None) -> tuple[Batch, bool]:
        """The batch with all its items, and whether this call made it. Raises ProblemError("idempotency-mismatch")."""
        cap = min(self.batch_running, spec.max_running or self.batch_running)
        batch_id, created = await self.ledger.submit_batch(
            spec, owner=owner, cap=cap, idempotency_key=idempotency_key, bell=self.doorbell.for_items
        )
        await self.ledger.work_on(batch_id)
        return await self.ledger.get_batch(batch_id), created

    async def preflight(self, spec: JobSpec) -> Preflight:
        """The plan from headers alone, or why there can be none. Raises ProblemError("preflight-timeout")."""
        asked = await self.ledger.ask_preflight(spec)
        self.doorbell.ring_preflight(asked)
        answer = await self.ledger.preflight_answer(asked, self.preflight_seconds)
        if answer is None:
            raise ProblemError("preflight-timeout", f"no worker answered within {self.preflight_seconds:g} seconds")
        return answer
