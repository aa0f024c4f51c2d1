"""Arms with given counts."""

import hashlib
from collections.abc import Sequence

from draftmill.benchmarks import Arm, ArmName, Counts, GroupResult, PromptResult
from draftmill_worker.bench import counting

SHA = "5e" * 32


def counts(drafts: int, *by_position: int) -> Counts:
    return Counts(
        drafts=drafts,
        draft_tokens=drafts * len(by_position),
        accepted=sum(by_position),
        accepted_per_position=by_position,
    )


def prompt(identity: str, counted: Counts | None, *, output: str = "", category: str = "chat") -> PromptResult:
    return PromptResult(
        id=identity,
        category=category,
        prompt_tokens=10,
        output_tokens=20,
        output_sha256=hashlib.sha256(output.encode()).hexdigest(),
        counts=counted,
    )


def arm(counted: Sequence[Counts], name: ArmName = ArmName.CONTROL, groups: tuple[GroupResult, ...] = ()) -> Arm:
    """One prompt for each of the counts."""
    pooled = counting.total(counted)
    return Arm(
        name=name,
        receipt="b" + "1" * 32,
        prompts=tuple(prompt(f"p{place}", one) for place, one in enumerate(counted)),
        groups=groups,
        counts=pooled,
        al=counting.acceptance_length(pooled),
        output_sha256=SHA,
    )
