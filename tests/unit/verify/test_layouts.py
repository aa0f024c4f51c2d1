"""Every layout in every format through plan, quantize, assemble and verify, judged by vLLM's own configuration class.

The whole matrix is slow; each layout in one format or more is in every run.
"""

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch

from draftmill.formats import FORMATS, Format
from draftmill.reports import CheckStatus
from draftmill_worker.verify import engine
from draftmill_worker.verify.checks.ignore import engine_queries
from draftmill_worker.verify.view import View
from tests.fixtures.synthetic import Layout
from tests.unit.verify.variants import Case, build, explained, with_status

pytestmark = pytest.mark.timeout(1500)

SHARDED = Layout(shards=3)
HEAD = {"lm_head.weight": torch.randn(320, 128, generator=torch.Generator().manual_seed(1)).bfloat16()}
_BLOCK: dict[str, Any] = {"mask_token_id": 1, "target_layer_ids": [1, 2, 3]}
_TOP_LEVEL: dict[str, Any] = {"dflash_config": ..., **_BLOCK}
LAYOUTS: dict[str, dict[str, Any]] = {
    "eagle": {"family": "eagle"},
    "eagle sharded": {"family": "eagle", "layout": SHARDED},
    "eagle without embedding": {"family": "eagle", "layout": Layout(drop=("embed_tokens.weight",), dtype="float16")},
    "eagle3": {"family": "eagle3", "layout": Layout(dtype="float32")},
    "eagle3 speculators": {"family": "eagle3", "speculators": "eagle3", "layout": SHARDED},
    "eagle3 borrowed head": {
        "family": "eagle3",
        "layout": Layout(drop=("lm_head.weight", "d2t", "t2d")),
        "draft_vocab_size": ...,
    },
    "dflash top level": {"family": "dflash", "layout": Layout(dtype="mixed", shards=2), **_TOP_LEVEL},
    "dflash speculators": {"family": "dflash", "speculators": "dflash", "layout": Layout(dtype="float16")},
    "dflash own head": {"family": "dflash", "extra": HEAD, "has_own_lm_head": True},
    "dflash2": {"family": "dflash2"},
    "dflash2 speculators": {"family": "dflash2", "speculators": "dflash2"},
    "dflash2 sharded": {"family": "dflash2", "layout": SHARDED},
    "dspark": {"family": "dspark", "layout": Layout(dtype="float32", shards=2)},
    "dspark nested": {
        "family": "dspark",
        "dflash_config": _BLOCK,
        "target_layer_ids": ...,
        "mask_token_id": ...,
    },
    "dspark speculators": {"family": "dspark", "speculators": "dspark"},
    "gemma4 dspark": {"family": "gemma4_dspark"},
    "gemma4 dspark sharded": {"family": "gemma4_dspark", "layout": SHARDED},
    "draft_model": {"family": "draft_model", "layout": Layout(dtype="mixed", shards=3)},
    "draft_model tied": {
        "family": "draft_model",
        "layout": Layout(drop=("lm_head.weight",)),
        "tie_word_embeddings": True,
    },
}
MATRIX = [f"{layout}, {format}" for layout in LAYOUTS for format in FORMATS]
QUICK = [f"{layout}, {format}" for layout, format in zip(LAYOUTS, cycle(FORMATS), strict=False)]

Built = Callable[[str], Case]


def _build(root: Path, name: str) -> Case:
    layout, _, format = name.rpartition(", ")
    return build(root, format=Format(format), **LAYOUTS[layout])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    root, cases = tmp_path_factory.mktemp("layouts"), dict[str, Case]()

    def get(name: str) -> Case:
        if name not in cases:
            cases[name] = _build(root / name, name)
        return cases[name]

    return get


def _answers(cases: list[Case], folder: Path) -> Path:
    """vLLM's answers to all configurations, from one process: starting it takes seconds."""
    build = engine.build()
    assert build is not None, "vLLM is part of the test environment"
    questions = []
    for case in cases:
        with View(case.source, case.variant, case.plan) as view:
            questions.append(engine.question(view.quantization, engine_queries(view)[0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "TIMEOUT", 900.0)  # a busy machine takes minutes for the import alone
        assert {answer.unavailable for answer in engine.ask_all(questions, build, folder)} == {None}
    return folder


@pytest.fixture(scope="module")
def quick_answers(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _answers([built(name) for name in QUICK], tmp_path_factory.mktemp("quick") / "cache")


@pytest.fixture(scope="module")
def all_answers(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _answers([built(name) for name in MATRIX], tmp_path_factory.mktemp("all") / "cache")


def _judge(case: Case, answers: Path) -> None:
    report = case.verify(answers)
    assert report.passed, explained(report)
    assert with_status(report, CheckStatus.WARN) == []
    evidence = {check.id: check.evidence for check in report.checks}
    assert evidence["engine-reads-config"]["cached"]
    assert evidence["modelopt-parity"]["bytes"] > 0


@pytest.mark.parametrize("name", QUICK)
def test_every_layout(built: Built, quick_answers: Path, name: str) -> None:
    _judge(built(name), quick_answers)


@pytest.mark.slow
@pytest.mark.parametrize("name", MATRIX)
def test_every_layout_in_every_format(built: Built, all_answers: Path, name: str) -> None:
    _judge(built(name), all_answers)
