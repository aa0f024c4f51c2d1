"""The order of the stages, and what the end of one means for the job."""

from draftmill.problems import Problem
from draftmill.states import Reason, Stage

_REASONS = {
    Stage.PULL: Reason.PULL_FAILED,
    Stage.PLAN: Reason.PLAN_REFUSED,
    Stage.QUANTIZE: Reason.QUANTIZE_FAILED,
    Stage.ASSEMBLE: Reason.ASSEMBLE_FAILED,
    Stage.VERIFY: Reason.VERIFY_FAILED,
    Stage.SEAL: Reason.SEAL_FAILED,
}
ORDER = tuple(_REASONS)
_BY_PROBLEM = {"internal": Reason.INTERNAL, "stage-timeout": Reason.STAGE_TIMEOUT}
SECRETS: dict[Stage, tuple[str, ...]] = {Stage.PULL: ("HF_TOKEN",)}
"""Environment variables that a stage is handed; no other stage has them."""


def reason(stage: Stage, problem: Problem) -> Reason:
    """Why a job failed whose stage ended with a problem."""
    return _BY_PROBLEM.get(problem.slug, _REASONS[stage])
