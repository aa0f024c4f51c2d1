"""One Lua script per transition. Each is atomic, and answers the same when it is sent a second time after a lost reply.

What the scripts know of states, stages and problems is generated here from the Python tables, so they cannot disagree.
"""

import functools
import json
from collections.abc import Iterable
from importlib import resources

from draftmill.problems import ProblemError
from draftmill.states import DONE, TRANSITIONS, Reason, Stage
from draftmill_service.ledger.keys import BATCHES_QUEUE, JOB_ID_IN_BELL, MAX_EVENTS

_PROBLEMS = {
    Reason.WORKER_LOST: ProblemError("worker-lost", "every attempt lost its worker; the last lease ran out"),
    Reason.DEADLINE_EXCEEDED: ProblemError("deadline-exceeded", "the job was not done by its deadline"),
}


def _set(names: Iterable[str]) -> str:
    return "{" + ",".join(f"{name}=true" for name in sorted(names)) + "}"


def _prelude() -> str:
    transitions = ",".join(f"{state}={_set(targets)}" for state, targets in TRANSITIONS.items())
    stages = ",".join(f"'{stage}'" for stage in Stage)
    # A JSON string is a Lua string, as long as it holds no \\u or \\/ escape; json.dumps of ASCII text makes none.
    problems = ",".join(
        f"{reason}={json.dumps(error.problem.model_dump_json(exclude_none=True))}"
        for reason, error in _PROBLEMS.items()
    )
    return (
        f"local TRANSITIONS = {{{transitions}}}\n"
        f"local DONE = {_set(DONE)}\n"
        f"local STAGES = {{{stages}}}\n"
        f"local PROBLEMS = {{{problems}}}\n"
        f"local MAX_EVENTS = {MAX_EVENTS}\n"
        f"local BATCHES_QUEUE, JOB_ID_IN_BELL = '{BATCHES_QUEUE}', '{JOB_ID_IN_BELL}'\n"
    )


@functools.cache
def load(name: str) -> str:
    """Source of a script, ready for SCRIPT LOAD."""
    folder = resources.files(__name__)
    parts = (folder / f"{part}.lua" for part in ("common", "batching", name))
    return "\n".join((_prelude(), *(part.read_text("utf-8") for part in parts)))
