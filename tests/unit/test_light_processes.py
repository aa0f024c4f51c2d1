"""Processes that supervise or answer preflights stay light: they load neither torch nor what comes with it."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "numba", "modelopt", "vllm"}


@pytest.mark.parametrize(
    "module", ["draftmill_worker.tasks", "draftmill_worker.launcher", "draftmill_worker.stages.preflight"]
)
def test_nothing_heavy_is_imported(module: str) -> None:
    code = f"import sys, {module}; print(*(sys.modules.keys() & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
