"""Job states, their legal transitions, and the closed set of reasons for an ending."""

from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"


class Reason(StrEnum):
    """Why a job ended other than well. The job's `problem` has the particulars."""

    CANCELED_BY_USER = "canceled_by_user"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    WORKER_LOST = "worker_lost"
    STAGE_TIMEOUT = "stage_timeout"
    PULL_FAILED = "pull_failed"
    CHOOSE_FAILED = "choose_failed"
    CAPTURE_FAILED = "capture_failed"
    PLAN_REFUSED = "plan_refused"
    QUANTIZE_FAILED = "quantize_failed"
    HEADS_FAILED = "heads_failed"
    ASSEMBLE_FAILED = "assemble_failed"
    VERIFY_FAILED = "verify_failed"
    SEAL_FAILED = "seal_failed"
    BENCH_FAILED = "bench_failed"
    """Nothing was measured that could be trusted."""
    GATE_FAILED = "gate_failed"
    """The variant was measured, and is not good enough."""
    BATCH_STOPPED = "batch_stopped"
    """More items of its batch had failed than the batch allows."""
    INTERNAL = "internal"


S = JobState
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    S.QUEUED: frozenset({S.RUNNING, S.CANCELED, S.EXPIRED}),
    # running -> queued: the lease was lost or the stage handed back, and attempts are left.
    S.RUNNING: frozenset({S.QUEUED, S.CANCELING, S.SUCCEEDED, S.FAILED, S.EXPIRED}),
    # A worker that dies while canceling leaves the reaper to finish the cancel.
    S.CANCELING: frozenset({S.CANCELED, S.FAILED}),
    S.SUCCEEDED: frozenset(),
    # Retry by the user.
    S.FAILED: frozenset({S.QUEUED}),
    S.CANCELED: frozenset({S.QUEUED}),
    # Its deadline has passed for good.
    S.EXPIRED: frozenset(),
}
DONE: frozenset[JobState] = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELED, S.EXPIRED})
del S


class Stage(StrEnum):
    """The stages of a job, in the order they run."""

    PULL = "pull"
    CHOOSE = "choose"
    """Only of jobs with `format: auto`."""
    CAPTURE = "capture"
    """Only of jobs that rewrite a head or cut a draft vocabulary."""
    PLAN = "plan"
    QUANTIZE = "quantize"
    HEADS = "heads"
    """In place of quantize and assemble, of jobs that rewrite a head or cut a draft vocabulary."""
    ASSEMBLE = "assemble"
    VERIFY = "verify"
    SEAL = "seal"
    BENCH = "bench"
    """Only of jobs that ask for a benchmark."""


ASKED_FOR = frozenset({Stage.CHOOSE, Stage.CAPTURE, Stage.HEADS, Stage.BENCH})
"""Stages of those jobs alone that ask for them."""


class StageState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    SKIPPED = "skipped"
    """Answered from the store: the variant was sealed before."""
    FAILED = "failed"
    CANCELED = "canceled"
    INTERRUPTED = "interrupted"
    """The worker was lost or handed the stage back."""
