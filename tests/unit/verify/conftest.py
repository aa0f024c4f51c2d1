"""Good variants, built once, with the engine's answers to their configurations."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Family
from draftmill_worker.verify import engine
from draftmill_worker.verify.checks.ignore import engine_queries
from draftmill_worker.verify.view import View
from tests.unit.assemble.sources import FAMILIES
from tests.unit.verify.mutations import MUTATIONS
from tests.unit.verify.variants import Case, build

Good = Callable[[str], Case]


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    """A good variant by name: `<family>-<format>`, or one of the special ones below. Not to be changed: copy it."""
    root = tmp_path_factory.mktemp("good")
    built: dict[str, Case] = {}

    def get(name: str) -> Case:
        if name not in built:
            built[name] = _build(root / name, name)
        return built[name]

    return get


def _build(root: Path, name: str) -> Case:
    if name == "sharded":
        return build(root, Family.EAGLE3, Format.NVFP4, shards=3)
    if name == "float32":
        return build(root, Family.EAGLE3, Format.FP8, dtype=torch.float32)
    if name == "reference":
        return build(root, Family.EAGLE3, Format.FP8, options=QuantizeOptions(scales="reference"))
    family, _, format = name.partition("-")
    return build(root, Family(family), Format(format))


@pytest.fixture(scope="session")
def cache(good: Good, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vLLM's answers for all that the tests ask, from one process: starting it takes seconds."""
    folder = tmp_path_factory.mktemp("engine") / "cache"
    build = engine.build()
    assert build is not None, "vLLM is part of the test environment"
    cases = [good(f"{family}-{format}") for family in FAMILIES for format in Format]
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
