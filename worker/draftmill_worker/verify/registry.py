"""The registry of checks: what each reads, what it proves, and what must hold before it can judge."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from draftmill.problems import Offender
from draftmill.reports import CheckStatus
from draftmill_worker.verify.view import View


@dataclass
class Result:
    """What a check found. Without a status of its own it fails when there are offenders, and passes otherwise."""

    evidence: dict[str, Any] = field(default_factory=dict)
    offenders: list[Offender] = field(default_factory=list)
    status: CheckStatus | None = None

    def blame(self, where: str, message: str, value: Any = None) -> None:
        self.offenders.append(Offender(where=where, message=message, value=value))

    @property
    def verdict(self) -> CheckStatus:
        if self.status is not None:
            return self.status
        return CheckStatus.FAIL if self.offenders else CheckStatus.PASS


def skipped(reason: str, **evidence: Any) -> Result:
    """For what does not apply to this variant, or needs something that is not installed."""
    return Result(evidence={"skipped": reason, **evidence}, status=CheckStatus.SKIP)


Run = Callable[[View], Result]


@dataclass(frozen=True)
class Entry:
    id: str
    proves: str
    reads: str
    after: tuple[str, ...]
    """Checks without which this one would only repeat their offenders; it is skipped when one of them failed."""
    run: Run


REGISTRY: dict[str, Entry] = {}
"""Every check by id, in the order they run."""


def check(id: str, *, proves: str, reads: str, after: tuple[str, ...] = ()) -> Callable[[Run], Run]:
    """Registers a check. What it comes `after` must be registered before it."""

    def register(run: Run) -> Run:
        unknown = [other for other in after if other not in REGISTRY]
        if unknown or id in REGISTRY:
            raise ValueError(f"check {id}: comes after {unknown}, or is registered twice")
        REGISTRY[id] = Entry(id, proves, reads, after, run)
        return run

    return register
