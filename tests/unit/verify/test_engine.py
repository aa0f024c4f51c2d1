"""vLLM's view of a configuration: our matcher against the engine's own, and what happens when it does not answer."""

import random
from pathlib import Path
from typing import Any

import pytest

from draftmill.plans import Family
from draftmill.reports import CheckStatus
from draftmill_worker.verify import engine
from draftmill_worker.verify.runtime import as_engine_reads, excluded, packed_mapping
from tests.unit.assemble.sources import FAMILIES
from tests.unit.verify.conftest import Good
from tests.unit.verify.variants import with_status

LAYERS = 2
PATHS = ("self_attn.qkv_proj", "self_attn.q_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
PIECES = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj")
ROOTS = ("layers", "model.layers", "*layers", "draft_model.model.layers")


def patterns(randomness: random.Random) -> list[str]:
    def one() -> str:
        kind, piece = randomness.randrange(5), randomness.choice(PIECES)
        part = "mlp" if piece in PIECES[5:] else "self_attn"
        layer = f"{randomness.choice(ROOTS)}.{randomness.choice(['0', '1', '4', '5', '*'])}"
        return [
            f"{layer}.{part}.{piece}",
            f"*.{piece}",
            f"{layer}.{part}*",
            randomness.choice(["fc", "lm_head", "mlp.up", "*lm_head*", "model.fc"]),
            f"{layer}*",
        ][kind]

    return [one() for _ in range(randomness.randrange(5))]


def test_our_matcher_is_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred lists over every family, with the engine's answer as the expectation; refusals are answers too."""
    randomness, depth = random.Random(5), 4
    build = engine.build()
    assert build is not None
    asked = []
    for number in range(200):
        family = FAMILIES[number % len(FAMILIES)]
        root = "draft_model.model.layers.0" if family is Family.DRAFT_MODEL else "model.layers.4"
        names = (*(f"{root}.{path}" for path in PATHS), "model.fc", "lm_head")
        asked.append((engine.Query(family, depth, LAYERS, names), patterns(randomness)))
    base = {"quant_method": "modelopt", "quant_algo": "FP8"}
    questions = [engine.question(base | {"ignore": ignore}, [query]) for query, ignore in asked]
    answers = engine.ask_all(questions, build, tmp_path)
    refused = 0
    for (query, ignore), answer in zip(asked, answers, strict=True):
        assert answer.unavailable is None
        read = as_engine_reads(query.family, ignore, depth, LAYERS)
        try:
            ours = {f"{depth}: {name}": excluded(name, read, packed_mapping(query.family)) for name in query.names}
        except ValueError:
            refused += 1
            assert answer.refusal is not None, (query.family, ignore)
            continue
        assert answer.excluded == ours, (query.family, ignore)
    assert 0 < refused < 100
    _check_memory(questions, build, tmp_path, monkeypatch)


def _check_memory(questions: list[dict[str, Any]], build: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are remembered for the question and the engine's build; no process can answer within this time."""
    monkeypatch.setattr(engine, "TIMEOUT", 0.01)
    assert all(answer.cached for answer in engine.ask_all(questions, build, cache))
    assert engine.ask_all(questions[:1], "another build", cache)[0].unavailable


def test_no_answer_in_time_is_said_and_not_remembered(
    good: Good, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TIMEOUT", 0.05)
    report = good("eagle3-fp8").verify(tmp_path / "cache")
    assert report.passed
    assert with_status(report, CheckStatus.SKIP) == ["engine-reads-config"]
    check = next(check for check in report.checks if check.id == "engine-reads-config")
    assert "no answer within" in check.evidence["because"]
    assert not (tmp_path / "cache").exists()


def test_without_vllm_the_check_says_so(good: Good, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "build", lambda: None)
    report = good("eagle3-fp8").verify()
    assert report.passed
    assert with_status(report, CheckStatus.SKIP) == ["engine-reads-config"]
