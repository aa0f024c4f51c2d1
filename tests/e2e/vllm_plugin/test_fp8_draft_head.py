"""A Gemma4 target and its assistant in real vLLM, the assistant's head in FP8: the receipt, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from draftmill.problems import ProblemError
from draftmill.receipts import Receipt
from draftmill_worker.bench import vllm_plugin
from tests.e2e.vllm_plugin.draft_head import FP8, PROMPTS, TOKENS, measure, record
from tests.fixtures.gemma4 import Pair, build
from tests.unit.receipts.draft_heads import DRAFTED, RECORDED

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    pytest.importorskip("vllm")
    return build(tmp_path_factory.mktemp("gemma4") / "models")


@pytest.fixture(scope="module")
def fp8(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Receipt:
    return measure(tmp_path_factory.mktemp("fp8"), pair, FP8)


def _all_accepted(receipt: Receipt) -> None:
    """Of each answer's tokens the prompt's pass gives the first, and whole drafts the others."""
    drafts = len(PROMPTS) * (TOKENS - 1) // (DRAFTED + 1)
    assert receipt.counts is not None
    assert receipt.counts.drafts == drafts
    assert receipt.counts.accepted == receipt.counts.draft_tokens == drafts * DRAFTED


def test_its_receipt_keeps_every_rule(fp8: Receipt) -> None:
    assert [rule for rule in fp8.rules if not rule.passed] == []
    assert {"fp8_draft_head.worker", "fp8_draft_head.gemma4_mtp"} <= set(fp8.plugins)
    assert fp8.emulated
    _all_accepted(fp8)


def test_the_head_alone_is_quantized(fp8: Receipt, pair: Pair) -> None:
    view = fp8.view
    assert view is not None
    assert view.draft_head is not None
    quantized = {module.name for module in view.modules if not (module.method or "").startswith("Unquantized")}
    assert quantized == {"lm_head"}
    assert all(name.startswith("Unquantized") for name in view.target_methods)
    stored = load_file(pair.assistant / "model.safetensors")["model.embed_tokens.weight"].float()
    assert list(view.draft_head.scale) == [pytest.approx(stored.abs().max().item() / 448, rel=1e-6)]


def test_the_record_that_the_rules_are_tested_on_is_this_boots(fp8: Receipt) -> None:
    was: dict[str, Any] = json.loads(RECORDED.read_bytes())
    now = json.loads(json.dumps(record(fp8)))
    assert now["view"]["draft_head"] == was["view"]["draft_head"]
    assert [module["name"] for module in now["view"]["modules"]] == [
        module["name"] for module in was["view"]["modules"]
    ]
    assert now["counts"] == was["counts"]
    assert now["environment"] == was["environment"] == FP8


@pytest.mark.slow
def test_without_the_variable_nothing_changes(pair: Pair, fp8: Receipt, tmp_path: Path) -> None:
    plain = measure(tmp_path, pair, {vllm_plugin.VARIABLE: "emulation"})
    assert [rule for rule in plain.rules if not rule.passed] == []
    assert plain.view is not None
    assert plain.view.draft_head is None
    assert plain.view.head is not None
    assert plain.view.head.dtype == "bfloat16"
    assert plain.output_sha256 == fp8.output_sha256
    _all_accepted(plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "assistant", "drafts", "reason"),
    [
        ({}, {"use_ordered_embeddings": True}, True, "ordered: its ordered embeddings"),
        ({}, {"tie_word_embeddings": False}, True, "tied: its head is not tied"),
        ({}, {}, False, "role: there is no drafter"),
        ({vllm_plugin.FP8_DRAFT_HEAD: "fp8_per_block"}, {}, True, "it gives fp8_per_block_static"),
        ({vllm_plugin.VARIABLE: ""}, {}, True, "kernel: a CPU's kernel"),
    ],
    ids=["ordered", "untied", "no drafter", "another spec", "no kernel"],
)
def test_a_request_that_is_not_eligible_stops_the_engine(
    tmp_path: Path, environ: dict[str, str], assistant: dict[str, Any], drafts: bool, reason: str
) -> None:
    pair = build(tmp_path / "models", assistant=assistant)
    with pytest.raises(ProblemError) as caught:
        measure(tmp_path, pair, FP8 | environ, drafts=drafts)
    assert caught.value.problem.type.endswith("boot-failed")
    said = " ".join(offender.message for offender in caught.value.problem.offenders)
    assert "DRAFTMILL_FP8_DRAFT_HEAD cannot be met" in said
    assert reason in said
