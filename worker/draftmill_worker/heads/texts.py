"""Texts to read or to count: a benchmark's prompts, and lines of a corpus that have `text`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftmill.benchmarks import PromptSet
from draftmill.problems import Offender, ProblemError
from draftmill_worker.bench import prompts


def load(asked: PromptSet, file: Path | None) -> tuple[prompts.Prompt, ...]:
    """As `bench.prompts.load`; a line's `text` counts as its prompt. ProblemError("prompts-invalid")."""
    if file is None:
        return prompts.load(asked, None)
    data = b"\n".join(_as_prompt(line) for line in file.read_bytes().splitlines())
    return prompts.choose(prompts.parse(data), asked)


def _as_prompt(line: bytes) -> bytes:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        # Left for the reader to blame, by its number.
        return line
    if not isinstance(value, dict) or "text" not in value or {"prompt", "turns", "messages"} & value.keys():
        return line
    value["prompt"] = value.pop("text")
    return json.dumps(value).encode()


def plain(prompt: prompts.Prompt) -> str:
    """All that is said in it."""
    return "\n".join(prompt.turns or [message.content for message in prompt.messages])


def lines(file: Path) -> Iterator[str]:
    """The text of each line of a corpus, read as it comes. ProblemError("prompts-invalid") names a line without any."""
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield _text(line, number)


def _text(line: bytes, number: int) -> str:
    try:
        value: Any = json.loads(line)
        parts = _parts(value) if isinstance(value, dict) else []
    except (ValueError, RecursionError, TypeError, KeyError):
        parts = []
    if not parts or not all(isinstance(part, str) for part in parts):
        offender = Offender(where=f"line {number}", message="is no object with `text`, `prompt`, `turns` or `messages`")
        raise ProblemError("prompts-invalid", f"line {number} of the corpus has no text", [offender])
    return "\n".join(parts)


def _parts(value: dict[str, Any]) -> list[Any]:
    for key in ("text", "prompt"):
        if key in value:
            return [value[key]]
    return list(value.get("turns") or [message["content"] for message in value["messages"]])
