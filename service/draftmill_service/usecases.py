"""What a caller can do to jobs: the ledger's transitions, and a ring where a worker should look."""

from dataclasses import dataclass

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

    async def retry(self, job_id: str) -> Job:
        """Raises ProblemError: not-found, expired, conflict."""
        job = await self.ledger.retry(job_id)
        self.doorbell.ring(job.id)
        return job

    async def preflight(self, spec: JobSpec) -> Preflight:
        """The plan from headers alone, or why there can be none. Raises ProblemError("preflight-timeout")."""
        asked = await self.ledger.ask_preflight(spec)
        self.doorbell.ring_preflight(asked)
        answer = await self.ledger.preflight_answer(asked, self.preflight_seconds)
        if answer is None:
            raise ProblemError("preflight-timeout", f"no worker answered within {self.preflight_seconds:g} seconds")
        return answer
