"""Prompt files as they come, and the set that ships."""

import json
from collections import Counter
from pathlib import Path

import pytest

from draftmill.benchmarks import PromptSet
from draftmill.problems import ProblemError
from draftmill_worker.bench import prompts

SHIPPED = PromptSet(builtin="draftmill-1")
PINNED = "6d0f9b06248b00174ab2447c8d20722448b26da83daf27d9aa577ef170326c75"


def _lines(*values: object) -> bytes:
    return b"\n".join(json.dumps(value).encode() for value in values)


def test_the_set_that_ships() -> None:
    chosen = prompts.load(SHIPPED, None)
    categories = Counter(prompt.category for prompt in chosen)
    assert set(categories) == {"chat", "code", "math", "prose", "translation"}
    assert min(categories.values()) >= 16
    assert len({prompt.turns for prompt in chosen}) == len(chosen) >= 80
    # A change of the set makes every earlier number another thing: it gets another name.
    assert prompts.sha256(chosen, SHIPPED) == PINNED
    assert prompts.load(PromptSet(limit=3), None) == chosen[:3]


def test_three_ways_to_write_a_prompt() -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    found = prompts.parse(
        _lines({"prompt": "One", "id": "a"}, {"turns": ["Two", "Three"], "category": "x"}, {"messages": talk})
    )
    assert [prompt.id for prompt in found] == ["a", "2", "3"]
    assert found[1].turns == ("Two", "Three")
    assert [message.content for message in found[2].messages] == ["Be brief.", "Hello"]


def test_mt_bench_as_it_is_published() -> None:
    line = {"question_id": 81, "category": "writing", "turns": ["Write.", "Write again."], "reference": ["x"]}
    (found,) = prompts.parse(_lines(line))
    assert (found.id, found.category, found.turns) == ("81", "writing", ("Write.", "Write again."))


def test_all_lines_that_are_wrong_are_named() -> None:
    data = b"\n".join(
        [
            b'{"prompt": "fine", "id": "a"}',
            b"{",
            b"[]",
            b'{"text": "x"}',
            b'{"prompt": ""}',
            b'{"prompt": "again", "id": "a"}',
            b'{"messages": [{"role": "assistant", "content": "x"}]}',
            b"",
            b'{"prompt": 7}',
            b"\xff\xfe",
        ]
    )
    with pytest.raises(ProblemError) as caught:
        prompts.parse(data)
    assert caught.value.problem.slug == "prompts-invalid"
    assert [offender.where for offender in caught.value.problem.offenders] == [
        f"line {number}" for number in (2, 3, 4, 5, 6, 7, 9, 10)
    ]


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "none.jsonl"
    file.write_bytes(b"\n\n")
    with pytest.raises(ProblemError, match="prompts-invalid"):
        prompts.load(PromptSet(), file)


def test_a_limit_takes_of_every_category_in_turn() -> None:
    names = [*(f"x{number}" for number in range(5)), "y0", "y1"]
    data = _lines(*({"prompt": name, "id": name, "category": name[0]} for name in names))
    chosen = prompts.choose(prompts.parse(data), PromptSet(limit=5))
    assert [prompt.id for prompt in chosen] == ["x0", "x1", "x2", "y0", "y1"]
    only = prompts.choose(prompts.parse(data), PromptSet(categories=("y",)))
    assert [prompt.id for prompt in only] == ["y0", "y1"]


def test_a_category_that_there_is_not_is_named() -> None:
    with pytest.raises(ProblemError) as caught:
        prompts.load(PromptSet(categories=("code", "poetry")), None)
    assert [offender.value for offender in caught.value.problem.offenders] == ["poetry"]


def test_groups_are_of_one_category() -> None:
    chosen = prompts.load(PromptSet(limit=12), None)
    grouped = prompts.groups(chosen, 2)
    assert sorted(prompt.id for group in grouped for prompt in group) == sorted(prompt.id for prompt in chosen)
    assert all(len(group) <= 2 and len({prompt.category for prompt in group}) == 1 for group in grouped)


def test_the_hash_is_of_all_that_is_put_to_the_engine() -> None:
    chosen = prompts.load(SHIPPED, None)
    hashes = {
        prompts.sha256(chosen, SHIPPED),
        prompts.sha256(chosen[1:], SHIPPED),
        prompts.sha256(chosen, PromptSet(max_tokens=64)),
        prompts.sha256(chosen, PromptSet(chat_template="never")),
    }
    assert len(hashes) == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"builtin": "draftmill-1", "path": {"path": "/x"}},
        {"repo": {"repo": "a/b"}},
        {"file": "x.jsonl"},
        {"max_tokens": 1},
    ],
)
def test_a_set_is_one_set(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        PromptSet.model_validate(fields)
