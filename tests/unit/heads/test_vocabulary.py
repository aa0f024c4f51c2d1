"""Draft vocabularies: counting, choosing, and what a choice covers."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from draftmill.benchmarks import PromptSet
from draftmill.problems import ProblemError
from draftmill_worker.heads import rows, texts, vocabulary
from tests.unit.heads import captured

WORDS = [f"w{number}" for number in range(20)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target whose tokens are words: w0 is id 2."""
    tokenizer = Tokenizer(models.WordLevel({"<end>": 0, "<pad>": 1} | {w: n + 2 for n, w in enumerate(WORDS)}, "<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<end>", "<pad>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": [0, 7]}}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"bos_token_id": 5}))
    return tmp_path


def _corpus(path: Path, count: int = 40) -> Path:
    """Text n has words 0 to n % 20."""
    lines = [json.dumps({"text": " ".join(WORDS[: number % 20 + 1])}) for number in range(count)]
    path.write_text("\n".join(lines) + "\n\n")
    return path


def test_counts_are_pythons_own_with_a_tenth_held_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "BATCH", 7)
    corpus = _corpus(tmp_path / "c.jsonl")
    counts = vocabulary.count_texts(texts.lines(corpus), vocabulary.tokenizer_of(folder), 32)
    wanted = {part: Counter[int]() for part in ("seen", "held")}
    for number in range(40):
        wanted["held" if number % 10 == 9 else "seen"].update(range(2, number % 20 + 3))
    for part, counted in wanted.items():
        assert getattr(counts, part).tolist() == [counted[token] for token in range(32)]


def test_special_tokens_are_those_of_tokenizer_and_configurations(folder: Path) -> None:
    assert vocabulary.special_ids(folder, 32).tolist() == [0, 1, 5, 7]
    assert vocabulary.special_ids(folder, 6).tolist() == [0, 1, 5]


def test_the_choice_is_special_then_frequent_then_low(folder: Path) -> None:
    seen = torch.tensor([0, 0, 5, 5, 9, 1, 1, 0])
    counts = vocabulary.Counts(seen, torch.tensor([0, 0, 2, 2, 4, 1, 0, 1]))
    special = torch.tensor([0, 7])
    assert vocabulary.choose(counts, 2, special).tolist() == [0, 7]
    assert vocabulary.choose(counts, 4, special).tolist() == [0, 2, 4, 7]
    assert vocabulary.choose(counts, 6, special).tolist() == [0, 2, 3, 4, 5, 7]
    assert vocabulary.covered(counts, torch.tensor([0, 2, 4, 7])) == pytest.approx(0.7)
    table = vocabulary.coverage(counts, 4, special)
    assert [(one.size, one.covered) for one in table] == [(2, 0.1), (4, 0.7), (8, 1.0)]
    for size in (1, 9):
        with pytest.raises(ProblemError) as caught:
            vocabulary.choose(counts, size, special)
        assert caught.value.problem.slug == "draft-vocab-invalid"


@given(data=st.data())
def test_every_choice_is_sorted_unique_in_range_and_covers_no_less_when_larger(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(4, 40))
    numbers = st.lists(st.integers(0, 5), min_size=vocab, max_size=vocab)
    counts = vocabulary.Counts(torch.tensor(data.draw(numbers)), torch.tensor(data.draw(numbers)))
    special = torch.tensor(sorted(data.draw(st.sets(st.integers(0, vocab - 1), max_size=3))), dtype=torch.int64)
    least, before = max(len(special), 1), set[int]()
    for size in range(least, vocab + 1):
        ids = vocabulary.choose(counts, size, special).tolist()
        assert ids == sorted(set(ids))
        assert len(ids) == size
        assert set(special.tolist()) | before <= set(ids) <= set(range(vocab))
        before = set(ids)


def test_the_targets_own_outputs_are_counted_from_its_capture(tmp_path: Path) -> None:
    read = [[number % 3, 5] for number in range(20)]
    path = captured.write(tmp_path / "c", read, torch.randn(40, 128))
    counts = vocabulary.count_rows(rows.open_rows(path), 8)
    seen = Counter(token for number, text in enumerate(read) if number % 10 != 9 for token in text)
    assert counts.seen.tolist() == [seen[token] for token in range(8)]
    assert int(counts.held.sum()) == 4


@pytest.mark.parametrize(
    ("content", "values"),
    [("[3, 1, 1]", [1]), ("[3, 40, -1]", [40, -1]), ("[1, 1, 32]", [32, 1])],
)
def test_wrong_ids_are_all_named(tmp_path: Path, content: str, values: list[int]) -> None:
    (tmp_path / "ids.json").write_text(content)
    with pytest.raises(ProblemError) as caught:
        vocabulary.given_ids(tmp_path / "ids.json", 32)
    problem = caught.value.problem
    assert problem.slug == "draft-vocab-invalid"
    assert [offender.value for offender in problem.offenders] == values


@pytest.mark.parametrize("content", ["{}", "[]", "[1.5]", "[true]", '["1"]', "[1,", "[[1]]", "1"])
def test_what_is_no_list_of_ids_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "ids.json").write_text(content)
    with pytest.raises(ProblemError) as caught:
        vocabulary.given_ids(tmp_path / "ids.json", 32)
    assert caught.value.problem.slug == "draft-vocab-invalid"


def test_given_ids_are_sorted(tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text("[9, 2, 31]")
    assert vocabulary.given_ids(tmp_path / "ids.json", 32).tolist() == [2, 9, 31]


def test_a_tokenizer_of_another_vocabulary_is_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ProblemError) as caught:
        vocabulary.count_texts(["w9"], vocabulary.tokenizer_of(folder), 8)
    assert caught.value.problem.slug == "draft-vocab-invalid"
    with pytest.raises(ProblemError, match="no tokens"):
        vocabulary.count_texts([], vocabulary.tokenizer_of(folder), 32)
    with pytest.raises(ProblemError, match=r"tokenizer\.json"):
        vocabulary.tokenizer_of(tmp_path / "nowhere")


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"text": 3}', '{"turns": [1]}', '{"messages": [{"role": "user"}]}'])
def test_a_line_without_text_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "c").write_text('{"prompt": "a"}\n\n' + line + "\n")
    with pytest.raises(ProblemError, match="line 3"):
        list(texts.lines(tmp_path / "c"))


def test_lines_of_every_kind_are_read(tmp_path: Path) -> None:
    lines = [{"text": "a"}, {"prompt": "b"}, {"turns": ["c", "d"]}, {"messages": [{"role": "user", "content": "e"}]}]
    (tmp_path / "c").write_text("\n".join(map(json.dumps, lines)))
    assert list(texts.lines(tmp_path / "c")) == ["a", "b", "c\nd", "e"]
    loaded = texts.load(PromptSet(), tmp_path / "c")
    assert [texts.plain(prompt) for prompt in loaded] == ["a", "b", "c\nd", "e"]
    (tmp_path / "c").write_text('{"text": "a"}\n{"text": 7}\n')
    with pytest.raises(ProblemError) as caught:
        texts.load(PromptSet(), tmp_path / "c")
    assert caught.value.problem.offenders[0].where == "line 2"
