"""Broken and harmful checkpoints are refused by name, and with little memory."""

import tracemalloc
from pathlib import Path

import pytest
from safetensors import SafetensorError, safe_open

from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from tests.fixtures.hostile import BAD_HEADERS, HOSTILE, Case

_BOUND = 100 << 20


@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.name)
def test_opening_names_the_problem(case: Case, tmp_path: Path) -> None:
    folder = case.build(tmp_path / "checkpoint")
    tracemalloc.start()
    try:
        with pytest.raises(ProblemError) as caught:
            open_checkpoint(folder)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.problem.slug == case.slug
    assert peak < _BOUND


@pytest.mark.parametrize("case", BAD_HEADERS, ids=lambda case: case.name)
def test_the_library_refuses_the_file_too(case: Case, tmp_path: Path) -> None:
    """Keeps the cases honest: each file is malformed by the format's own reader."""
    folder = case.build(tmp_path / "checkpoint")
    with pytest.raises((SafetensorError, OSError)), safe_open(folder / "model.safetensors", "pt"):
        pass
