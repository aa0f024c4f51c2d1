"""What a rule is given, what it gives back, and the list of all rules."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from draftmill.benchmarks import ArmName
from draftmill.problems import Offender
from draftmill.receipts import EngineView, Receipt
from draftmill_worker.receipts.expected import Expected

FP8_DRAFT_HEAD = "DRAFTMILL_FP8_DRAFT_HEAD"
"""Read by `bench.vllm_plugin.fp8_draft_head`."""


@dataclass(frozen=True)
class Case:
    receipt: Receipt
    expected: Expected

    @property
    def drafts(self) -> bool:
        return self.receipt.arm is not ArmName.NONE

    @property
    def draft_head_asked(self) -> bool:
        """Whether the operator had the draft head quantized on loading: see `ruleset.draft_head`."""
        view, asked = self.receipt.view, self.receipt.environment.get(FP8_DRAFT_HEAD, "")
        return bool(asked.strip()) or (view is not None and view.draft_head is not None)


@dataclass
class Found:
    """What a rule found: offenders break it; the detail says what was looked at."""

    detail: str
    offenders: list[Offender] = field(default_factory=list)

    def blame(self, where: str, message: str, value: object = None) -> None:
        plain = value if value is None or isinstance(value, bool | int | float | str) else str(value)
        self.offenders.append(Offender(where=where, message=message, value=plain))

    def require(self, holds: bool, where: str, message: str, value: object = None) -> None:
        if not holds:
            self.blame(where, message, value)


Judge = Callable[[Case], Found]


class Rule(NamedTuple):
    proves: str
    judge: Judge


RULES: dict[str, Rule] = {}
"""Every rule by name, in the order they are judged."""


def rule(name: str, *, proves: str) -> Callable[[Judge], Judge]:
    """Registers a rule."""

    def register(judge: Judge) -> Judge:
        RULES[name] = Rule(proves, judge)
        return judge

    return register


def viewed(found: Found, case: Case) -> EngineView | None:
    """What the engine was seen to be; nothing seen breaks the rule."""
    if case.receipt.view is None:
        found.blame("view", "nothing was recorded from inside the engine")
    return case.receipt.view


def dtype_of(name: str | None) -> str | None:
    return None if name is None else name.removeprefix("torch.")


def one_of(names: frozenset[str]) -> str:
    return " or ".join(sorted(names))
