"""Good variants, built once, with the engine's answers to their configurations."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Family
from draftmill_worker.verify import engine
from draftmill_worker.verify.checks.ignore import engine_queries
from draftmill_worker.verify.view import View
from tests.fixtures.synthetic import Layout
from tests.unit.assemble.sources import FAMILIES
from tests.unit.verify.mutations import MUTATIONS
from tests.unit.verify.variants import Case, build, build_mtp

Good = Callable[[str], Case]

PLAIN: dict[str, dict[str, Any]] = {
    f"{family}-{format}": {"family": family, "format": format} for family in FAMILIES for format in Format
}
_NVFP4: dict[str, Any] = {"family": Family.EAGLE3, "format": Format.NVFP4}
_FP8: dict[str, Any] = {"family": Family.EAGLE3, "format": Format.FP8}
_SEARCH = QuantizeOptions(nvfp4_scale_search=True)
_DRAFT: dict[str, Any] = {"family": Family.DRAFT_MODEL, "format": Format.NVFP4, "num_nextn_predict_layers": 1}
SPECIAL: dict[str, dict[str, Any]] = {
    "sharded": _NVFP4 | {"layout": Layout(shards=3)},
    "float32": _FP8 | {"layout": Layout(dtype="float32")},
    "mixed": _NVFP4 | {"layout": Layout(dtype="mixed", shards=2)},
    "kept": _FP8 | {"layout": Layout(dtype="float16"), "options": QuantizeOptions(dtype="keep")},
    "float16": _NVFP4 | {"layout": Layout(dtype="float32"), "options": QuantizeOptions(dtype="float16")},
    "reference-fp8": _FP8 | {"options": QuantizeOptions(scales="reference")},
    "reference-nvfp4": _NVFP4 | {"options": QuantizeOptions(scales="reference")},
    "searched": _NVFP4 | {"options": _SEARCH},
    "searched-zero-rows": {
        "family": Family.DSPARK,
        "format": Format.W4A16_NVFP4,
        "options": _SEARCH,
        "layout": Layout(dtype="float32", zero_rows=("*_proj.weight",)),
    },
    "zero-rows": _NVFP4 | {"layout": Layout(zero_rows=("*_proj.weight",))},
    "zero-rows-fp8_pc_pt": {
        "family": Family.DRAFT_MODEL,
        "format": Format.FP8_PC_PT,
        "layout": Layout(zero_rows=("*_proj.weight",)),
    },
    "zero-weight": _FP8 | {"layout": Layout(zero=("*o_proj.weight",))},
    "lm-head": _NVFP4 | {"options": QuantizeOptions(lm_head=True)},
    "no-fc": _FP8 | {"options": QuantizeOptions(exclude=("*fc*",))},
    "no-attention": {
        "family": Family.DRAFT_MODEL,
        "format": Format.NVFP4,
        "options": QuantizeOptions(exclude=("*.layers.0.self_attn.*",)),
    },
    "one-layer-kept": {
        "family": Family.DSPARK,
        "format": Format.W4A16_NVFP4,
        "options": QuantizeOptions(exclude=("layers.1.*",)),
    },
    "known-depth": _FP8 | {"num_target_layers": 36},
    "predicting-block": _DRAFT | {"extra": {"mtp.layers.0.mlp.down_proj.weight": torch.ones(128, 256)}},
    "predicting-layer": _DRAFT | {"extra": {"model.layers.2.mlp.down_proj.weight": torch.ones(128, 256)}},
    "speculators-eagle3": _NVFP4 | {"speculators": "eagle3"},
    "speculators-dflash": {"family": Family.DFLASH, "format": Format.FP8, "speculators": "dflash"},
    "speculators-dspark": {"family": Family.DSPARK, "format": Format.NVFP4, "speculators": "dspark"},
}

TENSORS = 43
"""Of tests/fixtures/mtp.py: as many shards hold one each."""
MTP: dict[str, dict[str, Any]] = {
    "mtp-fp8": {"format": Format.FP8},
    "mtp-nvfp4": {"format": Format.NVFP4, "apart": True, "shards": 2},
    "mtp-fp8_pc_pt": {"format": Format.FP8_PC_PT, "apart": True, "link": True},
    "mtp-multimodal": {"format": Format.W4A16_NVFP4, "shards": 3, "multimodal": True},
    "mtp-one-by-one": {"format": Format.FP8, "shards": TENSORS},
    "mtp-kept": {"format": Format.FP8, "options": QuantizeOptions(exclude=("*fc*", "mtp.layers.0.self_attn.*"))},
}
"""Blocks in a target's checkpoint."""


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    """A good variant by its name in PLAIN, SPECIAL or MTP. Not to be changed: copy it."""
    root = tmp_path_factory.mktemp("good")
    built: dict[str, Case] = {}

    def get(name: str) -> Case:
        if name in MTP and name not in built:
            built[name] = build_mtp(root / name, **MTP[name])
        elif name not in built:
            built[name] = build(root / name, **(PLAIN | SPECIAL)[name])
        return built[name]

    return get


@pytest.fixture(scope="session")
def cache(good: Good, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vLLM's answers for all that the tests ask, from one process: starting it takes seconds."""
    folder = tmp_path_factory.mktemp("engine") / "cache"
    build = engine.build()
    assert build is not None, "vLLM is part of the test environment"
    cases = [good(name) for name in PLAIN | SPECIAL | MTP]
    for number, mutation in enumerate(MUTATIONS):
        if mutation.check == "engine-reads-config":
            cases.append(good(mutation.base).copy(folder.parent / f"spoiled-{number}"))
            mutation.spoil(cases[-1])
    questions = []
    for case in cases:
        with View(case.source, case.variant, case.plan) as view:
            questions.append(engine.question(view.quantization, engine_queries(view)[0]))
    answers = engine.ask_all(questions, build, folder)
    assert [answer.unavailable for answer in answers] == [None] * len(answers)
    return folder
