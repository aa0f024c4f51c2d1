"""The worker's side of the ledger: synchronous, and fenced."""

import secrets
from enum import StrEnum
from typing import Any, Literal, NamedTuple, cast

from pydantic_core import to_json
from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.commands.core import Script
from redis.retry import Retry

from draftmill.jobs import Job, JobSpec, Progress, ResolvedSpec, StageRecord, Summary
from draftmill.plans import Preflight
from draftmill.problems import Problem
from draftmill.receipts import ChainHeads
from draftmill.reports import EventKind
from draftmill.states import Outcome, Reason, Stage
from draftmill_service.ledger import records, scripts
from draftmill_service.ledger.devices import Devices
from draftmill_service.ledger.errors import AWAY, LeaseLost, LedgerUnavailable
from draftmill_service.ledger.keys import PREFIX, Keys
from draftmill_service.ledger.workers import About

MAX_LOG_CHARS = 8192
ANSWER_SECONDS = 120
"""How long an answer to a preflight is kept for the one who asked."""


class Claim(NamedTuple):
    job: Job
    attempt: int
    """Number of this attempt, from 1."""
    fence: int
    """Grows with each claim of the job; the ledger takes writes of the newest only."""


class Signal(StrEnum):
    CONTINUE = "continue"
    CANCEL = "cancel"
    """Stop the stages, then finish with outcome canceled. The lease is renewed."""
    EXPIRED = "expired"
    """The deadline passed: stop the stages, then finish with outcome expired. The lease is renewed."""
    LOST = "lost"
    """Somebody else may run the job: stop and write nothing more."""


class WorkerLedger:
    """What one worker does to jobs. Safe to use from several threads.

    Every method raises LedgerUnavailable when Redis stays away longer than the client's retries last. Calls may be
    repeated after that: each finds what an earlier try has done.
    """

    def __init__(self, redis: "Redis", prefix: str = PREFIX) -> None:
        """`redis` decodes responses, as the one that `connect` makes."""
        self._redis = redis
        self._keys = Keys(prefix)
        self._scripts: dict[str, Script] = {}
        self.devices = Devices(self._run)

    @classmethod
    def connect(cls, url: str, *, patience: float = 15.0, prefix: str = PREFIX) -> "WorkerLedger":
        """`patience`: about how many seconds a call outlasts a Redis that restarts or loads its append-only file."""
        retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), retries=max(1, round(patience / 0.5)))
        return cls(
            Redis.from_url(url, decode_responses=True, retry=retry, socket_timeout=5.0, socket_connect_timeout=2.0),
            prefix,
        )

    def close(self) -> None:
        self._redis.close()

    def _run(self, name: str, *args: Any) -> Any:
        if name not in self._scripts:
            self._scripts[name] = self._redis.register_script(scripts.load(name))
        try:
            return self._scripts[name](args=[self._keys.prefix, *args])
        except AWAY as error:
            raise LedgerUnavailable(f"no answer to {name}") from error

    def _write(self, name: str, claim: Claim, *args: Any) -> None:
        if self._run(name, claim.job.id, claim.fence, *args) != 1:
            raise LeaseLost(claim.job.id, claim.fence)

    def claim(self, job_id: str, worker: str, lease_seconds: float) -> Claim | None:
        """Take a queued job. None when it is not queued (a duplicate message), unknown, or past its deadline."""
        flat = self._run("claim", job_id, worker, _ms(lease_seconds), secrets.token_hex(8))
        if flat is None:
            return None
        record = records.pairs(flat)
        return Claim(records.job(job_id, record), int(record["attempt"]), int(record["fence"]))

    def wants_benchmark(self, job_id: str) -> bool:
        """False as well for a job that is not known."""
        try:
            spec = cast("str | None", self._redis.hget(self._keys.job(job_id), "spec"))
        except AWAY as error:
            raise LedgerUnavailable("no answer to wants_benchmark") from error
        return spec is not None and JobSpec.model_validate_json(spec).benchmark is not None

    def renew(self, claim: Claim, lease_seconds: float) -> Signal:
        """Extend the lease to `lease_seconds` from now, and learn what is wanted."""
        return Signal(self._run("renew", claim.job.id, claim.fence, _ms(lease_seconds)))

    def stage(self, claim: Claim, record: StageRecord) -> None:
        """Record a stage's state and progress; the ledger's clock gives the times. Raises LeaseLost."""
        progress = "" if record.progress is None else record.progress.model_dump_json()
        self._write("stage", claim, record.name, record.state, progress)

    def progress(self, claim: Claim, stage: Stage, progress: Progress) -> None:
        """Raises LeaseLost."""
        self._write("progress", claim, stage, progress.model_dump_json())

    def log(
        self,
        claim: Claim,
        level: Literal["debug", "info", "warning", "error"],
        message: str,
        stage: Stage | None = None,
    ) -> None:
        """Append a line to the job's events; longer than MAX_LOG_CHARS is cut. Raises LeaseLost."""
        data = {"level": level, "message": message[:MAX_LOG_CHARS], "stage": stage, "attempt": claim.attempt}
        self._write(EventKind.LOG, claim, to_json(data).decode())

    def resolve(self, claim: Claim, resolved_spec: ResolvedSpec, family: str | None = None) -> None:
        """Record what the spec resolved to. Raises LeaseLost."""
        self._write("resolve", claim, resolved_spec.model_dump_json(), family or resolved_spec.family)

    def finish(
        self,
        claim: Claim,
        outcome: Outcome,
        reason: Reason | None = None,
        problem: Problem | None = None,
        *,
        summary: Summary | None = None,
        cached: bool = False,
    ) -> bool:
        """End the job. False for a stale holder, whose ending does not count.

        A job that was asked to cancel in the meantime ends as canceled, whatever outcome but failed is given.
        """
        done = self._run(
            "finish",
            claim.job.id,
            claim.fence,
            outcome,
            reason or "",
            "" if problem is None else problem.model_dump_json(),
            "" if summary is None else summary.model_dump_json(),
            "1" if cached else "0",
        )
        return bool(done == 1)

    def hand_back(self, claim: Claim) -> None:
        """Put the job back in the queue because this worker stops. The attempt is `interrupted` and does not count as
        lost; a job that was asked to cancel is canceled instead. Raises LeaseLost."""
        self._write("hand_back", claim)

    def show(self, name: str, about: About, seconds: float) -> None:
        """Be on the list of workers for `seconds` from now."""
        self._run("show_worker", name, about.model_dump_json(), _ms(seconds))

    def take_preflight(self, preflight_id: str) -> JobSpec | None:
        """The spec to plan for, to the first worker that asks; None when it is taken or nobody waits any more."""
        spec = self._run("take_preflight", preflight_id)
        return None if spec is None else JobSpec.model_validate_json(spec)

    def answer_preflight(self, preflight_id: str, answer: Preflight) -> None:
        key = self._keys.preflight_answer(preflight_id)
        try:
            with self._redis.pipeline() as pipe:
                pipe.xadd(key, {"answer": answer.model_dump_json(by_alias=True)})
                pipe.expire(key, ANSWER_SECONDS)
                pipe.execute()
        except AWAY as error:
            raise LedgerUnavailable("no answer to answer_preflight") from error

    def chain_heads(self) -> ChainHeads:
        """Heads of the chains of receipts, as their writers committed them."""
        try:
            return records.chain_heads(cast("dict[str, str]", self._redis.hgetall(self._keys.chains)))
        except AWAY as error:
            raise LedgerUnavailable("no answer to chain_heads") from error

    def commit_chain_head(self, writer: str, sequence: int, sha256: str) -> bool:
        """Record the newest entry of a writer's chain of receipts; `sequence` counts its entries from 1.

        False when the ledger holds a head that cannot lie before it: the chain lost its end, or was written anew.
        """
        return bool(self._run("chain_head", writer, sequence, sha256))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
