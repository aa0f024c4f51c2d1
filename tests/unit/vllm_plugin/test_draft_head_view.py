"""What is recorded of a draft head, from heads and embeddings of vLLM's own classes, and what the rules make of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from draftmill_worker.bench import vllm_plugin
from draftmill_worker.bench.draft_head_view import draft_head
from tests.fixtures.gemma4 import Sizes
from tests.unit.receipts.draft_heads import recorded

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("applied")]

SIZES = Sizes()
ONE_RANK = SimpleNamespace(tensor_parallel_size=1)
TEXT = SimpleNamespace(hidden_size=SIZES.draft_hidden, vocab_size=SIZES.vocab)
DRAFT = SimpleNamespace(hf_config=SimpleNamespace(get_text_config=lambda: TEXT))
CONFIG = SimpleNamespace(
    parallel_config=ONE_RANK,
    speculative_config=SimpleNamespace(draft_parallel_config=ONE_RANK, draft_model_config=DRAFT),
)
"""As much of an engine's configuration as is read."""


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import get_current_vllm_config

    monkeypatch.setenv(vllm_plugin.FP8_DRAFT_HEAD, "fp8_per_tensor")
    monkeypatch.setattr(get_current_vllm_config(), "model_config", SimpleNamespace(dtype=torch.bfloat16))


@pytest.fixture
def target() -> Any:
    return _model(SIZES.hidden)


@pytest.fixture
def drafter() -> Any:
    return _model(SIZES.draft_hidden)


def _model(hidden: int) -> Any:
    """A head tied to an embedding, as a target and its assistant have them when they are loaded."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    model: Any = nn.Module()
    model.model = nn.Module()
    model.model.embed_tokens = VocabParallelEmbedding(SIZES.vocab, hidden, params_dtype=torch.bfloat16)
    model.lm_head = ParallelLMHead(SIZES.vocab, hidden, params_dtype=torch.bfloat16, prefix="lm_head")
    model.lm_head.tie_weights(model.model.embed_tokens)
    weight = model.lm_head.weight
    weight.data.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return model


def _quantize(model: Any, conditions: dict[str, bool]) -> None:
    from draftmill_worker.bench.vllm_plugin.fp8_draft_head_model import Fp8DraftHeadMethod

    model.lm_head.quant_method = Fp8DraftHeadMethod(model.lm_head, torch.bfloat16, conditions)
    model.lm_head.quant_method.process_weights_after_loading(model.lm_head)


def _conditions(scratch: Path) -> dict[str, bool]:
    view = recorded(scratch / "recorded").receipt.view
    assert view is not None
    assert view.draft_head is not None
    return view.draft_head.conditions


def _failed(scratch: Path, drafter: Any, target: Any) -> set[str]:
    """Rules that a receipt breaks which is in order but for what is recorded of these."""
    return set(recorded(scratch / "judged").see(draft_head=draft_head(drafter, target, CONFIG)).failed())


def test_a_head_as_the_plugin_leaves_it_keeps_every_rule(drafter: Any, target: Any, tmp_path: Path) -> None:
    _quantize(drafter, _conditions(tmp_path))
    drafter.model.embed_tokens = target.model.embed_tokens
    assert _failed(tmp_path, drafter, target) == set()


def test_a_head_that_was_never_quantized_breaks_them(drafter: Any, target: Any, tmp_path: Path) -> None:
    drafter.model.embed_tokens = target.model.embed_tokens
    broken = {"draft-head-complete", "draft-head-method", "draft-head-weight"}
    assert _failed(tmp_path, drafter, target) == broken


def test_a_head_that_is_still_its_embedding_breaks_them(drafter: Any, target: Any, tmp_path: Path) -> None:
    assert {"draft-head-alone", "draft-embedding-borrowed"} <= _failed(tmp_path, drafter, target)


def test_a_drafter_that_kept_its_embedding_breaks_one(drafter: Any, target: Any, tmp_path: Path) -> None:
    _quantize(drafter, _conditions(tmp_path))
    assert _failed(tmp_path, drafter, target) == {"draft-embedding-borrowed"}


def test_a_target_whose_head_was_quantized_too_breaks_them(drafter: Any, target: Any, tmp_path: Path) -> None:
    conditions = _conditions(tmp_path)
    for model in (drafter, target):
        _quantize(model, conditions)
    drafter.model.embed_tokens = target.model.embed_tokens
    assert _failed(tmp_path, drafter, target) == {"draft-head-dtypes", "draft-head-target"}


def test_a_head_with_a_dead_weight_breaks_one(drafter: Any, target: Any, tmp_path: Path) -> None:
    drafter.lm_head.weight.data.zero_()
    _quantize(drafter, _conditions(tmp_path))
    drafter.model.embed_tokens = target.model.embed_tokens
    assert _failed(tmp_path, drafter, target) == {"draft-head-scale"}


@pytest.mark.parametrize("gone", ["embed_tokens", "lm_head"])
def test_what_is_not_there_to_compare_with_counts_as_wrong(
    drafter: Any, target: Any, tmp_path: Path, gone: str
) -> None:
    _quantize(drafter, _conditions(tmp_path))
    drafter.model.embed_tokens = target.model.embed_tokens
    delattr(target if gone == "lm_head" else target.model, gone)
    assert _failed(tmp_path, drafter, target) == {"draft-head-complete"}


def test_nothing_is_recorded_where_nothing_was_asked_for(
    drafter: Any, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(vllm_plugin.FP8_DRAFT_HEAD, " ")
    assert draft_head(drafter, target, CONFIG) is None
