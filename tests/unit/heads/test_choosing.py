"""Which tokens are chosen for a source: all of an MTP block's head, and of a native drafter only those it has."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from draftmill.benchmarks import PromptSet
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.heads import choosing
from draftmill_worker.heads.rows import open_rows
from tests.fixtures import synthetic
from tests.fixtures.heads import target
from tests.unit.heads import captured


@pytest.fixture(scope="module")
def mtp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = target.build(tmp_path_factory.mktemp("t") / "mtp", exact=True, shape=captured.SHAPE)
    target.write_tokenizer(folder, captured.SHAPE.vocab)
    return folder


def test_a_targets_own_outputs_give_its_most_frequent_tokens(mtp: Path, tmp_path: Path) -> None:
    subject = choosing.read_subject(mtp, open_checkpoint(mtp), mtp)
    assert (subject.vocab, subject.rows) == (1024, None)
    path = captured.write(tmp_path / "c", [[7] * 3 + [9] * 2 + [11]] * 20, torch.randn(120, 128))
    ids, table = choosing.from_rows(subject, open_rows(path), len(subject.special) + 2)
    assert set(ids.tolist()) == {7, 9, *subject.special.tolist()}
    assert next(one for one in table if one.size == len(ids)).covered == pytest.approx(5 / 6)


def test_a_corpus_is_counted_with_the_targets_tokenizer(mtp: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("\n".join(json.dumps({"text": "return self"}) for _ in range(20)))
    subject = choosing.read_subject(mtp, open_checkpoint(mtp), mtp)
    tokenizer = choosing.vocabulary.tokenizer_of(mtp)
    wanted = set(tokenizer.encode("return self", add_special_tokens=False).ids)
    for asked in (PromptSet(), PromptSet(limit=20)):
        said = choosing.said(asked, corpus)
        ids, table = choosing.from_texts(subject, said, len(subject.special) + len(wanted))
        assert wanted <= set(ids.tolist())
        assert table[-1].covered == 1.0
    assert len(list(choosing.said(PromptSet(builtin="draftmill-1"), None))) > 10


def test_a_native_drafter_gives_only_tokens_that_it_has(tmp_path: Path) -> None:
    source = synthetic.build(tmp_path / "s", "eagle3")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "config.json").write_text(json.dumps({"eos_token_id": [4, 5]}))
    subject = choosing.read_subject(source, open_checkpoint(source), tmp_path / "t")
    # Even ids have rows; 5 is special and has none.
    assert subject.special.tolist() == [4]
    path = captured.write(tmp_path / "c", [[1, 1, 1, 6, 6, 8, 300]] * 20, torch.randn(140, 128))
    ids, table = choosing.from_rows(subject, open_rows(path), 3)
    assert ids.tolist() == [4, 6, 8]
    assert table[-1].size == 128
    with pytest.raises(ProblemError, match="all that can be drafted"):
        choosing.from_rows(subject, open_rows(path), 129)


def test_given_ids_are_of_the_targets_vocabulary(mtp: Path, tmp_path: Path) -> None:
    subject = choosing.read_subject(mtp, open_checkpoint(mtp), mtp)
    (tmp_path / "ids.json").write_text("[1023, 0]")
    assert choosing.given(subject, tmp_path / "ids.json").tolist() == [0, 1023]
    (tmp_path / "ids.json").write_text("[1024]")
    with pytest.raises(ProblemError):
        choosing.given(subject, tmp_path / "ids.json")


def test_a_model_that_would_ignore_a_draft_vocabulary_is_refused(mtp: Path, tmp_path: Path) -> None:
    source = shutil.copytree(mtp, tmp_path / "nemotron")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["NemotronHForCausalLM"]}))
    with pytest.raises(ProblemError, match="not of NemotronHForCausalLM") as caught:
        choosing.read_subject(source, open_checkpoint(source), source)
    assert caught.value.problem.slug == "head-refused"
