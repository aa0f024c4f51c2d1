"""Prompts: from a file to a fixed, hashed list."""

import json
from collections import defaultdict
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError, model_validator

from draftmill._model import Model
from draftmill.benchmarks import PromptSet
from draftmill.digests import digest
from draftmill.problems import Offender, ProblemError

MAX_BYTES = 64 << 20
MAX_PROMPTS = 100_000
NO_CATEGORY = "all"
SHIPPED = "draftmill-1"


class Message(Model):
    role: Literal["system", "user", "assistant"]
    content: str


class Prompt(Model):
    """`messages` as they are, or `turns` of a user, each answered before the next is asked."""

    id: str
    category: str = NO_CATEGORY
    turns: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()

    @model_validator(mode="after")
    def _one_of(self) -> "Prompt":
        if bool(self.turns) == bool(self.messages):
            raise ValueError("must have `prompt`, `turns` or `messages`")
        if not all(self.turns) or (self.messages and self.messages[-1].role != "user"):
            raise ValueError("must end with what a user says")
        return self


def load(asked: PromptSet, file: Path | None) -> tuple[Prompt, ...]:
    """The prompts to run, in the order of the file. `file` is None for a set that ships.

    Raises ProblemError("prompts-invalid") with every line that is wrong.
    """
    if file is None:
        shipped = resources.files("draftmill_worker.bench") / "prompt_sets" / f"{asked.builtin or SHIPPED}.jsonl"
        data = shipped.read_bytes()
    else:
        data = _bounded(file)
    return choose(parse(data), asked)


def _bounded(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProblemError("prompts-invalid", f"{file.name} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ProblemError("prompts-invalid", f"{file.name} has more than {MAX_BYTES} bytes")
    return data


def parse(data: bytes) -> tuple[Prompt, ...]:
    """JSON lines as users have them, and as MT-Bench and Spec-Bench do: `question_id`, `category`, `turns`."""
    found: dict[str, Prompt] = {}
    offenders = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(json.loads(line), number)
            if prompt.id in found:
                raise ValueError(f"the id {prompt.id!r} is there already")  # noqa: TRY301
        except ValidationError as error:
            offenders.append(Offender(where=f"line {number}", message=error.errors(include_url=False)[0]["msg"]))
        except (ValueError, RecursionError) as error:
            offenders.append(Offender(where=f"line {number}", message=str(error)[:200]))
        else:
            found[prompt.id] = prompt
    if offenders:
        raise ProblemError("prompts-invalid", f"{len(offenders)} lines are no prompts", offenders[:100])
    if not 0 < len(found) <= MAX_PROMPTS:
        raise ProblemError("prompts-invalid", f"{len(found)} prompts; there must be 1 to {MAX_PROMPTS}")
    return tuple(found.values())


def _prompt(value: Any, number: int) -> Prompt:
    if not isinstance(value, dict):
        raise ValueError("is not an object")  # noqa: TRY004 -- collected with the other faults
    turns = value.get("turns") or ([value["prompt"]] if "prompt" in value else ())
    identity = value.get("id", value.get("question_id", number))
    category = str(value.get("category", NO_CATEGORY))
    messages = value.get("messages", ())
    return Prompt.model_validate({"id": str(identity), "category": category, "turns": turns, "messages": messages})


def choose(prompts: Sequence[Prompt], asked: PromptSet) -> tuple[Prompt, ...]:
    """Those of the categories asked for, at most `limit`, taken round robin over the categories."""
    by_category: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        by_category[prompt.category].append(prompt)
    if missing := sorted(set(asked.categories) - by_category.keys()):
        offenders = [Offender(where="prompts.categories", message="no prompt is of it", value=name) for name in missing]
        raise ProblemError("prompts-invalid", f"there are {', '.join(sorted(by_category))}", offenders)
    wanted = [group for name, group in by_category.items() if not asked.categories or name in asked.categories]
    longest = max(map(len, wanted))
    turns = [group[place] for place in range(longest) for group in wanted if place < len(group)]
    chosen = {prompt.id for prompt in turns[: asked.limit]}
    return tuple(prompt for prompt in prompts if prompt.id in chosen)


def groups(prompts: Sequence[Prompt], size: int) -> list[list[Prompt]]:
    """The prompts as they are in flight together: of one category each, at most `size`."""
    by_category: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        by_category[prompt.category].append(prompt)
    return [group[start : start + size] for group in by_category.values() for start in range(0, len(group), size)]


def sha256(prompts: Sequence[Prompt], asked: PromptSet) -> str:
    """Identity of what is run: the prompts, how they are put, and how long the answers may be."""
    return digest(
        {
            "prompts": [prompt.model_dump(mode="json") for prompt in prompts],
            "max_tokens": asked.max_tokens,
            "chat_template": asked.chat_template,
        }
    )
