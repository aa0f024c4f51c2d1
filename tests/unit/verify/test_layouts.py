"""Every layout in every format through plan, quantize, assemble and verify, judged by vLLM's own configuration class.

The whole matrix is slow; each layout in one format or more is in every run.
"""

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from draftmill.formats import FORMATS, Format
from draftmill.reports import CheckStatus
from draftmill_worker.verify import engine
from draftmill_worker.verify.checks.ignore import engine_queries
from draftmill_worker.verify.view import View
from tests.fixtures.synthetic import Layout
from tests.unit.verify.variants import Case, build, explained, with_status

SHARDED = Layout(shards=3)
LAYOUTS: dict[str, dict[str, Any]] = {
    "eagle": {"family": "eagle"},
    "eagle sharded": {"family": "eagle", "layout": SHARDED},
    "gemma4 dspark": {"family": "gemma4_dspark"},
    "gemma4 dspark sharded": {"family": "gemma4_dspark", "layout": SHARDED},
    "dflash2": {"family": "dflash2"},
    "dflash2 speculators": {"family": "dflash2", "speculators": "dflash2"},
    "dflash2 sharded": {"family": "dflash2", "layout": SHARDED},
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
