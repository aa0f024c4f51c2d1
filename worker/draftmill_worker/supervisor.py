"""One job from claim to ending. Runs in Celery's child: it holds the lease, watches the clock and a stage process.

What a stage says is the job's ending: a problem fails the job and is never tried again. What happens to a stage from
outside (its process or the template killed, the worker gone) is the loss of the attempt, which the ledger's reaper
repeats up to its bound.
"""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from draftmill._environment import secret
from draftmill.errors import SettingsError
from draftmill.jobs import Job, Progress, ResolvedSpec, StageRecord, Summary
from draftmill.problems import Problem, ProblemError
from draftmill.states import Outcome, Reason, Stage, StageState
from draftmill_service.ledger import Claim, LeaseLost, LedgerUnavailable, Signal, Waiting, WorkerLedger
from draftmill_worker import devices, metrics, pipeline
from draftmill_worker.lease import Lease
from draftmill_worker.runner import StageProcess, TemplateDownError
from draftmill_worker.scratch import Scratch, sweep
from draftmill_worker.settings import WorkerSettings
from draftmill_worker.stage import StageRequest, StageResult

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
KILL_SECONDS = 1.0
DEVICE_POLL_SECONDS = 0.25
MAX_INTERRUPTED = 3
"""A stage that something on its host keeps stopping must not go round for ever: later times count as losses."""
Results = dict[Stage, dict[str, Any]]


class Stop(Enum):
    """Why a job is stopped from outside."""

    CANCEL = "cancel"
    EXPIRED = "expired"
    LOST = "lost"
    """Somebody else holds the job now: nothing more is written."""
    CRASHED = "crashed"
    """The stage process or the template died: the attempt is lost, and the reaper is let know."""
    DRAINED = "drained"
    """This worker, its template or the stage was told to stop: the job goes back to the queue."""


class StoppedError(Exception):
    def __init__(self, why: Stop) -> None:
        super().__init__(why.value)
        self.why = why


class Ending(NamedTuple):
    outcome: Outcome
    reason: Reason | None = None
    problem: Problem | None = None
    summary: Summary | None = None
    cached: bool = False


_SIGNALS = {Signal.CANCEL: Stop.CANCEL, Signal.EXPIRED: Stop.EXPIRED, Signal.LOST: Stop.LOST}
_STOPPED = {
    Stop.CANCEL: Ending(
        Outcome.CANCELED, Reason.CANCELED_BY_USER, ProblemError("canceled", "the job was canceled").problem
    ),
    Stop.EXPIRED: Ending(
        Outcome.EXPIRED,
        Reason.DEADLINE_EXCEEDED,
        ProblemError("deadline-exceeded", "the job's deadline passed while it ran").problem,
    ),
}


@dataclass(frozen=True)
class Supervisor:
    ledger: WorkerLedger
    """Waits for a ledger that is away."""
    hasty: WorkerLedger
    """Does not wait long: for renewals and for reports that are better lost than late."""
    settings: WorkerSettings
    template: Path
    name: str
    draining: Callable[[], bool] = field(default=lambda: False)

    def look(self, job_id: str) -> None:
        """Do the job if it is to be done; nothing when it was done, taken or canceled."""
        if not self.settings.benchmarks and self.ledger.wants_benchmark(job_id):
            # Its doorbell rings again, for a worker that measures.
            return
        claim = self.ledger.claim(job_id, self.name, self.settings.lease_seconds)
        if claim is None:
            return
        logger.info("job %s attempt %d begins", job_id, claim.attempt)
        try:
            self._attempt(claim)
        except LeaseLost:
            logger.warning("job %s attempt %d lost its lease", job_id, claim.attempt)

    def _attempt(self, claim: Claim) -> None:
        jobs = self.settings.data_dir / "jobs"
        sweep(jobs, claim.job.id)
        lease = Lease(self.hasty, claim, self.settings.lease_seconds, self.settings.ledger_patience_seconds)
        with lease, Scratch(jobs / claim.job.id / str(claim.attempt)):
            try:
                ending = Attempt(self, claim, lease).run()
            except StoppedError as stopped:
                self._stop(claim, stopped.why)
            else:
                self._finish(claim, ending)

    def _stop(self, claim: Claim, why: Stop) -> None:
        logger.info("job %s attempt %d is stopped: %s", claim.job.id, claim.attempt, why.value)
        if why in _STOPPED:
            self._finish(claim, _STOPPED[why])
        elif why is Stop.DRAINED:
            self.ledger.hand_back(claim)
            metrics.ATTEMPTS.labels("interrupted").inc()
        elif why is Stop.CRASHED:
            # A lease that ends now: the reaper counts the loss, and decides whether there is another attempt.
            self.ledger.renew(claim, 0.0)
            metrics.ATTEMPTS.labels("lost").inc()

    def _finish(self, claim: Claim, ending: Ending) -> None:
        counted = self.ledger.finish(
            claim, ending.outcome, ending.reason, ending.problem, summary=ending.summary, cached=ending.cached
        )
        metrics.ATTEMPTS.labels(ending.outcome.value).inc(int(counted))
        logger.info("job %s %s%s", claim.job.id, ending.outcome, "" if counted else ", which does not count")


def _summary(value: dict[str, Any]) -> Summary | None:
    summary = value.get("summary")
    return None if summary is None else Summary.model_validate(summary)


def _secrets(stage: Stage) -> dict[str, str]:
    """Read anew for each stage: a token in a file may be another by now. Raises ProblemError."""
    try:
        return {name: value for name in pipeline.SECRETS.get(stage, ()) if (value := secret(name))}
    except SettingsError as error:
        raise ProblemError("internal", str(error)) from None


class Attempt:
    """The stages of one attempt."""

    def __init__(self, supervisor: Supervisor, claim: Claim, lease: Lease) -> None:
        self._supervisor = supervisor
        self._settings = supervisor.settings
        self._claim = claim
        self._lease = lease
        self._template_stops = False
        self._drain_until: float | None = None

    @property
    def _job(self) -> Job:
        return self._claim.job

    def run(self) -> Ending:
        """Raises StoppedError and LeaseLost; the stage process is gone by then."""
        results: Results = {}
        cached = False
        for stage in pipeline.stages(self._job.spec):
            if cached and stage in pipeline.BUILDING:
                self._record(stage, StageState.SKIPPED)
                continue
            ending = self._stage(stage, results)
            if ending is not None:
                return ending
            if stage is Stage.PLAN:
                cached = self._resolve(results[stage])
                if (withheld := results[stage].get("withheld")) is not None:
                    problem = Problem.model_validate(withheld)
                    reason = pipeline.reason(stage, problem)
                    return Ending(Outcome.FAILED, reason, problem, _summary(results[stage]), cached)
        last = Stage.BENCH if Stage.BENCH in results else Stage.PLAN if cached else Stage.SEAL
        return Ending(Outcome.SUCCEEDED, summary=_summary(results[last]), cached=cached)

    def _resolve(self, planned: dict[str, Any]) -> bool:
        """Record what the plan resolved the spec to; whether its variant is in the store already."""
        self._supervisor.ledger.resolve(self._claim, ResolvedSpec.model_validate(planned["resolved_spec"]))
        return bool(planned["cached"])

    def _stage(self, stage: Stage, results: Results) -> Ending | None:
        """Run one stage and keep its result; an ending when there is no going on."""
        seconds = 0.0
        try:
            with self._devices(stage) as claimed:
                self._record(stage, StageState.RUNNING)
                started = time.monotonic()
                result = self._process(stage, results, claimed)
                seconds = time.monotonic() - started
                logger.info("job %s stage %s took %.3f s", self._job.id, stage, seconds)
        except ProblemError as error:
            result = StageResult(problem=error.problem, seconds=0.0)
        if result is None:
            detail = f"stage {stage} ran longer than {self._settings.deadline(stage):g} s"
            result = StageResult(problem=ProblemError("stage-timeout", detail).problem, seconds=0.0)
        metrics.stage_ended(stage, self._job.spec, result, seconds)
        if result.problem is not None:
            if result.problem.slug == "boot-failed" and self._supervisor.draining():
                # A process manager that signals the whole group stops the engine too.
                raise StoppedError(Stop.DRAINED)
            self._record(stage, StageState.FAILED)
            reason = pipeline.reason(stage, result.problem)
            return Ending(Outcome.FAILED, reason, result.problem, _summary(result.value))
        results[stage] = result.value
        self._record(stage, StageState.SUCCEEDED)
        return None

    @contextmanager
    def _devices(self, stage: Stage) -> Iterator[tuple[str, ...]]:
        """What the stage needs to itself, waited for in line. ProblemError when the worker has not so much."""
        wanted = devices.wanted(stage, self._job.spec, self._settings)
        if wanted is None:
            yield ()
            return
        claims = self._supervisor.ledger.devices
        try:
            while isinstance(answer := claims.ask(self._claim, stage, wanted), Waiting):
                self._check()
                time.sleep(DEVICE_POLL_SECONDS)
            yield answer.devices
        finally:
            try:
                claims.release(self._claim, wanted.machine)
            except LedgerUnavailable as error:
                logger.warning("devices of job %s are free when its attempt ends: %s", self._job.id, error)

    def _record(self, stage: Stage, state: StageState) -> None:
        self._supervisor.ledger.stage(self._claim, StageRecord(name=stage, state=state))

    def _request(self, stage: Stage, results: Results, claimed: tuple[str, ...]) -> Path:
        request = StageRequest(
            job=self._job.id,
            attempt=self._claim.attempt,
            stage=stage,
            data_dir=self._settings.data_dir,
            spec=self._job.spec,
            previous=results,
            settings=self._settings.for_stages(),
            devices=claimed,
        )
        request.folder.mkdir(parents=True, exist_ok=True)
        path = request.folder / "request.json"
        path.write_text(request.model_dump_json())
        return path

    def _process(self, stage: Stage, results: Results, claimed: tuple[str, ...]) -> StageResult | None:
        """The stage's result; None when it ran past its deadline and was killed."""
        request = self._request(stage, results, claimed)
        secrets = _secrets(stage)
        deadline: float | None = None
        self._template_stops = False
        with StageProcess(
            self._supervisor.template, request, secrets=secrets, patience=self._settings.template_seconds
        ) as process:
            try:
                while (message := process.receive(POLL_SECONDS)) is None or "ended" not in message:
                    self._template_stops |= "stopping" in (message or {})
                    self._check()
                    self._report(stage, message or {})
                    if "started" in (message or {}):
                        deadline = time.monotonic() + self._settings.deadline(stage)
                    if deadline is not None and time.monotonic() > deadline:
                        self._kill(process)
                        return None
            except TemplateDownError as error:
                logger.warning("job %s stage %s: %s", self._job.id, stage, error)
                raise StoppedError(self._died(told=self._template_stops)) from error
            except StoppedError:
                self._kill(process)
                raise
        return self._result(stage, request, message["ended"])

    def _kill(self, process: StageProcess) -> None:
        if not process.kill(KILL_SECONDS):
            logger.error("a stage process of job %s does not die", self._job.id)

    def _result(self, stage: Stage, request: Path, ended: dict[str, Any]) -> StageResult:
        if ended["strays"]:
            logger.warning("stage %s left %d processes, which were killed", stage, ended["strays"])
        if ended["status"] != 0:
            logger.warning("job %s stage %s died with status %d", self._job.id, stage, ended["status"])
            raise StoppedError(self._died(told=ended["status"] == -signal.SIGTERM))
        return StageResult.model_validate_json(request.with_name("result.json").read_bytes())

    def _check(self) -> None:
        """Raises StoppedError when the job is to stop."""
        if self._lease.signal is not Signal.CONTINUE:
            raise StoppedError(_SIGNALS[self._lease.signal])
        if not (self._supervisor.draining() or self._template_stops):
            self._drain_until = None
            return
        now = time.monotonic()
        self._drain_until = self._drain_until or now + self._settings.drain_seconds
        if now >= self._drain_until:
            raise StoppedError(Stop.DRAINED)

    def _died(self, *, told: bool) -> Stop:
        """What it means that a process of the stage died: stopped, where it was told to or the whole worker is."""
        interrupted = sum(attempt.outcome == "interrupted" for attempt in self._job.attempts)
        stopped = self._supervisor.draining() or (told and interrupted < MAX_INTERRUPTED)
        return Stop.DRAINED if stopped else Stop.CRASHED

    def _report(self, stage: Stage, message: dict[str, Any]) -> None:
        hasty = self._supervisor.hasty
        try:
            if "progress" in message:
                hasty.progress(self._claim, stage, Progress.model_validate(message["progress"]))
            if "log" in message:
                hasty.log(self._claim, message["log"]["level"], message["log"]["message"], stage)
        except LedgerUnavailable as error:
            logger.warning("a report of job %s is lost: %s", self._job.id, error)
