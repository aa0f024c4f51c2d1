"""What a head needs beside the usual comes with a pull: backups of shards, a second quantization config, a corpus."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftmill.benchmarks import PromptSet
from draftmill.jobs import PathSource
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.heads.source import find_head
from draftmill_worker.pull import HubSettings, LocalSettings, pull_path
from draftmill_worker.pull import prompts as module
from draftmill_worker.pull.prompts import bring_corpus
from tests.unit.heads import layouts


@pytest.mark.parametrize("suffix", [".bak", ".bak-orig"])
def test_a_backup_of_the_head_is_pulled_and_found(tmp_path: Path, suffix: str) -> None:
    source = layouts.streamed(tmp_path / "source")
    whole = load_file(source / "model.safetensors")
    (source / "model.safetensors").rename(source / f"model.safetensors{suffix}")
    packed = {name: value for name, value in whole.items() if name != "lm_head.weight"}
    packed["lm_head.weight_packed"] = torch.zeros(1024, 64, dtype=torch.int32)
    save_file(packed, source / "model.safetensors")
    index = json.loads((source / "model.safetensors.index.json").read_text())
    index["weight_map"]["lm_head.weight_packed"] = index["weight_map"].pop("lm_head.weight")
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    (source / "quantization_config.json").write_text("{}")
    pulled = pull_path(source, [tmp_path], tmp_path / "sources", LocalSettings(), check=lambda _: None)
    assert (pulled.folder / "quantization_config.json").is_file()
    head = find_head(pulled.folder, open_checkpoint(pulled.folder))
    assert head.path == pulled.folder / f"model.safetensors{suffix}"
    assert head.tensor.shape == whole["lm_head.weight"].shape


def _bring(path: Path, tmp_path: Path, root: Path) -> Path | None:
    asked = PromptSet(path=PathSource(path=str(path)))
    (tmp_path / "scratch").mkdir(exist_ok=True)
    return bring_corpus(asked, tmp_path / "sources", tmp_path / "scratch", (root,), HubSettings(endpoint="http://x"))


def test_a_corpus_may_be_of_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "mine" / "c.jsonl"
    corpus.parent.mkdir()
    corpus.write_text('{"text": "a"}\n' * 100)
    monkeypatch.setattr(module, "MAX_BYTES", 64)
    kept = _bring(corpus, tmp_path, corpus.parent)
    assert kept is not None
    assert kept.read_bytes() == corpus.read_bytes()
    shipped = bring_corpus(PromptSet(), tmp_path, tmp_path, (), HubSettings(endpoint="http://x"))
    assert shipped is None


def test_a_corpus_outside_the_allowed_roots_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text("{}")
    with pytest.raises(ProblemError) as caught:
        _bring(tmp_path / "c.jsonl", tmp_path, tmp_path / "elsewhere")
    assert caught.value.problem.slug == "path-not-allowed"
    with pytest.raises(ProblemError) as caught:
        _bring(tmp_path / "none.jsonl", tmp_path, tmp_path)
    assert caught.value.problem.slug == "path-not-found"
