"""Where a command's words go: its result to stdout, as text or as one JSON document; everything else to stderr."""

import json
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from draftmill.errors import DraftmillError
from draftmill.problems import URN, Problem, ProblemError


def plain(text: object) -> str:
    """Text from elsewhere without control characters, so that it cannot drive the terminal."""
    return "".join(" " if unicodedata.category(char) == "Cc" else char for char in str(text))


def columns(rows: Sequence[Sequence[object]], right: frozenset[int] = frozenset()) -> list[str]:
    """Rows as lines of aligned columns; the numbered columns are aligned to the right."""
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def size(count: float) -> str:
    """Bytes for people, in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


class Output:
    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def result(self, value: BaseModel | dict[str, Any] | list[Any], *lines: str) -> None:
        """The command's result: `value` with --json, the lines without."""
        if self.as_json:
            print(dump(value), flush=True)
        else:
            print(*lines, sep="\n", flush=True)

    def note(self, text: str) -> None:
        """Something for the person at the terminal, never part of the result."""
        print(text, file=sys.stderr, flush=True)

    def error(self, error: DraftmillError) -> None:
        """The problem on stderr; with --json its document on stdout as well."""
        if self.as_json:
            print(dump(error.problem if isinstance(error, ProblemError) else _document(error)), flush=True)
        self.complain(error)

    def complain(self, error: DraftmillError) -> None:
        """The problem with all its offenders, on stderr."""
        problem = error.problem if isinstance(error, ProblemError) else None
        for number, line in enumerate(str(problem.detail if problem else error).splitlines()):
            self.note(f"{'' if number else 'draftmill: '}{plain(line)}")
        if problem:
            for offender in problem.offenders:
                self.note(f"  {plain(offender.where)}: {plain(offender.message)}")
            self.note(f"  ({problem.title}; problem {problem.slug})")


def _document(error: DraftmillError) -> dict[str, Any]:
    """A problem document for an error that has none of its own; its type is local to the client."""
    name = type(error).__name__.removesuffix("Error")
    slug = "client-" + "".join(f"-{char.lower()}" if char.isupper() else char for char in name).lstrip("-")
    problem = Problem(type=URN + slug, title=(type(error).__doc__ or slug).split("\n")[0], status=0, detail=str(error))
    return problem.model_dump(mode="json")


def dump(value: BaseModel | dict[str, Any] | list[Any]) -> str:
    if isinstance(value, BaseModel):
        return value.model_dump_json(by_alias=True)
    return json.dumps(value, ensure_ascii=False, default=_jsonable)


def _jsonable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"{type(value).__name__} is not JSON")
