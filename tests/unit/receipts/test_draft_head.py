"""The rules of a draft head quantized on loading, over the record of a real boot: each fails alone when broken."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftmill.receipts import DraftHeadRecord
from draftmill_worker.bench import vllm_plugin
from draftmill_worker.receipts import environment
from draftmill_worker.receipts.rule import FP8_DRAFT_HEAD, RULES
from draftmill_worker.receipts.ruleset import draft_head
from tests.unit.receipts.draft_heads import recorded
from tests.unit.receipts.good import Good, good

RULES_OF_IT = {name for name, rule in RULES.items() if rule.judge.__module__ == draft_head.__name__}


def _head(good: Good) -> DraftHeadRecord:
    assert good.receipt.view is not None
    assert good.receipt.view.draft_head is not None
    return good.receipt.view.draft_head


def _spoil(good: Good, **changes: Any) -> Good:
    return good.see(draft_head=_head(good).model_copy(update=changes))


def _condition(name: str, holds: bool) -> Callable[[Good], Good]:
    def spoil(good: Good) -> Good:
        conditions = _head(good).conditions
        assert name in conditions
        return _spoil(good, conditions=conditions | {name: holds})

    return spoil


BREAKS: dict[str, tuple[str, dict[str, Any]]] = {
    "two ranks": ("draft-head-on-one-rank", {"tensor_parallel_size": 2}),
    "rows that are not padded": ("draft-head-dims", {"partition": (1030, 64), "weight_shape": (64, 1030)}),
    "half the rows": ("draft-head-dims", {"partition": (544, 64), "weight_shape": (64, 544)}),
    "the target's hidden size": ("draft-head-dims", {"partition": (1088, 128), "weight_shape": (128, 1088)}),
    "a vocabulary one row above the padding": ("draft-head-dims", {"vocab_size": 1089}),
    "another class": ("draft-head-class", {"class_name": "vllm.model_executor.layers.linear.ColumnParallelLinear"}),
    "a class that is named like it": ("draft-head-class", {"class_name": "elsewhere.NotParallelLMHead"}),
    "another place": ("draft-head-class", {"prefix": "lm_head.inner"}),
    "unquantized": (
        "draft-head-method",
        {"method": "vllm.model_executor.layers.vocab_parallel_embedding.UnquantizedEmbeddingMethod"},
    ),
    "another spec": ("draft-head-method", {"spec": "fp8_per_channel_static"}),
    "a GPU's kernel on a CPU": ("draft-head-method", {"kernel": "CutlassFP8ScaledMMLinearKernel"}),
    "in bfloat16": ("draft-head-weight", {"weight_dtype": "bfloat16"}),
    "as it was loaded": ("draft-head-weight", {"weight_shape": (1088, 64)}),
    "a scale per row": ("draft-head-scale", {"scale": (0.5, 0.5)}),
    "a scale of zero": ("draft-head-scale", {"scale": (0.0,)}),
    "a negative scale": ("draft-head-scale", {"scale": (-0.5,)}),
    "a scale that is no number": ("draft-head-scale", {"scale": (float("nan"),)}),
    "a scale without bound": ("draft-head-scale", {"scale": (float("inf"),)}),
    "the draft embedding's weight": ("draft-head-alone", {"shares_draft_embedding": True}),
    "the target embedding's weight": ("draft-head-alone", {"shares_target_embedding": True}),
    "an embedding of its own": ("draft-embedding-borrowed", {"draft_embedding_shares_target": False}),
    "a draft embedding in FP8": ("draft-head-dtypes", {"draft_embedding_dtype": "float8_e4m3fn"}),
    "a target head in float32": ("draft-head-dtypes", {"target_head_dtype": "float32"}),
    "a target head in FP8": (
        "draft-head-target",
        {"target_head_method": "vllm.model_executor.layers.quantization.online.fp8.Fp8PerTensorOnlineLinearMethod"},
    ),
}


def test_the_boot_keeps_every_rule(tmp_path: Path) -> None:
    assert recorded(tmp_path).failed() == {}


@pytest.mark.parametrize("name", BREAKS)
def test_each_rule_fails_alone(tmp_path: Path, name: str) -> None:
    rule, changes = BREAKS[name]
    failed = _spoil(recorded(tmp_path), **changes).failed()
    assert list(failed) == [rule]
    assert failed[rule].offenders


@pytest.mark.parametrize("field", DraftHeadRecord.model_fields)
def test_what_was_not_recorded_counts_as_wrong(tmp_path: Path, field: str) -> None:
    default = DraftHeadRecord.model_fields[field].get_default(call_default_factory=True)
    failed = _spoil(recorded(tmp_path), **{field: default}).failed()
    assert list(failed) == ["draft-head-complete"]
    offenders = failed["draft-head-complete"].offenders
    assert all(offender.where.startswith(f"view.draft_head.{field}") for offender in offenders)


@pytest.mark.parametrize("name", sorted(draft_head.CONDITIONS))
def test_every_condition_must_have_held(tmp_path: Path, name: str) -> None:
    failed = _condition(name, holds=False)(recorded(tmp_path)).failed()
    assert list(failed) == ["draft-head-eligible"]
    assert [offender.where for offender in failed["draft-head-eligible"].offenders] == [
        f"view.draft_head.conditions.{name}"
    ]


@pytest.mark.parametrize("name", sorted(draft_head.CONDITIONS))
def test_every_condition_must_be_recorded(tmp_path: Path, name: str) -> None:
    receipt = recorded(tmp_path)
    conditions = {key: holds for key, holds in _head(receipt).conditions.items() if key != name}
    assert list(_spoil(receipt, conditions=conditions).failed()) == ["draft-head-complete"]


def test_a_head_that_was_asked_for_and_not_seen_breaks_the_receipt(tmp_path: Path) -> None:
    assert list(recorded(tmp_path).see(draft_head=None).failed()) == ["draft-head-complete"]


def test_nothing_is_judged_where_nothing_was_asked_for(tmp_path: Path) -> None:
    receipt = good(tmp_path)
    assert receipt.failed() == {}
    assert "draft-head-complete" in receipt.receive(environment={FP8_DRAFT_HEAD: "fp8_per_tensor"}).failed()


def test_without_the_variable_the_head_itself_shows_that_it_was_asked_for(tmp_path: Path) -> None:
    receipt = _spoil(recorded(tmp_path).receive(environment={}), weight_dtype="bfloat16")
    assert list(receipt.failed()) == ["draft-head-weight"]


def test_a_gpu_has_its_own_kernels(tmp_path: Path) -> None:
    receipt = recorded(tmp_path)
    receipt = receipt.receive(host=receipt.receipt.host.model_copy(update={"gpus": ("H200",)}))
    assert list(receipt.failed()) == ["draft-head-method"]
    assert _spoil(receipt, kernel="CutlassFP8ScaledMMLinearKernel").failed() == {}
    assert list(_spoil(receipt, kernel="MarlinFP8ScaledMMLinearKernel").failed()) == ["draft-head-method"]


def test_every_rule_is_broken_here() -> None:
    assert {rule for rule, _ in BREAKS.values()} | {"draft-head-complete", "draft-head-eligible"} == RULES_OF_IT


def test_the_variable_is_the_one_that_the_plugin_reads() -> None:
    assert FP8_DRAFT_HEAD == vllm_plugin.FP8_DRAFT_HEAD
    assert environment.allowed(FP8_DRAFT_HEAD)
