"""The order of the stages, and what the end of one means for the job."""

from draftmill.choices import AUTO, KEEP
from draftmill.jobs import JobSpec
from draftmill.problems import Problem
from draftmill.states import Reason, Stage

_REASONS = {
    Stage.PULL: Reason.PULL_FAILED,
    Stage.CHOOSE: Reason.CHOOSE_FAILED,
    Stage.CAPTURE: Reason.CAPTURE_FAILED,
    Stage.PLAN: Reason.PLAN_REFUSED,
    Stage.QUANTIZE: Reason.QUANTIZE_FAILED,
    Stage.HEADS: Reason.HEADS_FAILED,
    Stage.ASSEMBLE: Reason.ASSEMBLE_FAILED,
    Stage.VERIFY: Reason.VERIFY_FAILED,
    Stage.SEAL: Reason.SEAL_FAILED,
    Stage.BENCH: Reason.BENCH_FAILED,
}
ORDER = tuple(_REASONS)
BUILDING = frozenset({Stage.QUANTIZE, Stage.HEADS, Stage.ASSEMBLE, Stage.VERIFY, Stage.SEAL})
"""Skipped where the variant is in the store already."""
_BY_PROBLEM = {
    "internal": Reason.INTERNAL,
    "stage-timeout": Reason.STAGE_TIMEOUT,
    "gate-failed": Reason.GATE_FAILED,
}
SECRETS: dict[Stage, tuple[str, ...]] = {
    Stage.PULL: ("HF_TOKEN",),
    # The chain's head is committed to the ledger; its address may hold a password.
    Stage.CHOOSE: ("DRAFTMILL_REDIS_URL",),
    Stage.BENCH: ("DRAFTMILL_REDIS_URL",),
}
"""Environment variables that a stage is handed; no other stage has them."""


def stages(spec: JobSpec) -> tuple[Stage, ...]:
    """Those of a job, in order."""
    heads = spec.format == KEEP
    asked = {
        Stage.CHOOSE: spec.format == AUTO,
        Stage.CAPTURE: heads,
        Stage.QUANTIZE: not heads,
        Stage.HEADS: heads,
        Stage.ASSEMBLE: not heads,
        Stage.BENCH: spec.benchmark is not None,
    }
    return tuple(stage for stage in ORDER if asked.get(stage, True))


def reason(stage: Stage, problem: Problem) -> Reason:
    """Why a job failed whose stage ended with a problem."""
    return _BY_PROBLEM.get(problem.slug, _REASONS[stage])
