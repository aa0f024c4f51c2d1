"""Checks of rewritten heads and draft vocabularies by id, in the order they run."""

from collections.abc import Callable
from dataclasses import dataclass

from draftmill_worker.heads.verify.view import View
from draftmill_worker.verify.registry import Result


@dataclass(frozen=True)
class Entry:
    id: str
    proves: str
    run: Callable[[View], Result]


CHECKS: dict[str, Entry] = {}
"""Every check by id, in the order they run."""


def check(id: str, proves: str) -> Callable[[Callable[[View], Result]], Callable[[View], Result]]:
    def register(run: Callable[[View], Result]) -> Callable[[View], Result]:
        CHECKS[id] = Entry(id, proves, run)
        return run

    return register
