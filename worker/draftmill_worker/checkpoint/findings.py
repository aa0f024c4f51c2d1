"""Faults collected before any of them is raised, so that one answer lists them all."""

from collections.abc import Iterable

from draftmill.problems import Offender, ProblemError


class Findings:
    """Offenders of several kinds. The kind found first names the problem, all offenders go with it."""

    def __init__(self) -> None:
        self._found: list[tuple[str, Offender]] = []

    def add(
        self, slug: str, where: str, message: str, value: "str | int | list[int] | list[str] | None" = None
    ) -> None:
        self._found.append((slug, Offender(where=where, message=message, value=value)))

    def extend(self, slug: str, offenders: Iterable[Offender]) -> None:
        self._found += [(slug, offender) for offender in offenders]

    def __bool__(self) -> bool:
        return bool(self._found)

    def raise_any(self) -> None:
        """ProblemError when anything was found."""
        if not self._found:
            return
        slug, first = self._found[0]
        offenders = [offender for _, offender in self._found]
        more = f" (and {len(offenders) - 1} more)" if len(offenders) > 1 else ""
        raise ProblemError(slug, f"{first.where}: {first.message}{more}", offenders)
