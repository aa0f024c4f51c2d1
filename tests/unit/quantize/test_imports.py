"""What importing costs others: plans need no torch, and a process that may fork must hold no threads."""

import json
import subprocess
import sys

import numba
import pytest

from draftmill_worker.quantize.kernels.jit import jit


def loaded(code: str) -> dict[str, object]:
    report = (
        "import sys, json, threading\n"
        "found = {name: name in sys.modules for name in ('torch', 'numba', 'modelopt', 'numpy')}\n"
        "tasks = len(__import__('os').listdir('/proc/self/task'))\n"
        "print(json.dumps(found | {'threads': tasks}))"
    )
    run = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], text=True, capture_output=True, check=True)
    result: dict[str, object] = json.loads(run.stdout.splitlines()[-1])
    return result


def test_schemes_and_plans_need_neither_torch_nor_numba() -> None:
    found = loaded("import draftmill_worker.quantize.formats, draftmill_worker.quantize.plan")
    assert not found["torch"]
    assert not found["numba"]


def test_the_engine_needs_no_torch() -> None:
    assert not loaded("import draftmill_worker.quantize.stream, draftmill_worker.engine")["torch"]


def test_warming_up_starts_no_threads() -> None:
    before = loaded("import numpy")["threads"]
    found = loaded("from draftmill_worker.quantize.kernels import warm_up; warm_up()")
    assert found["numba"]
    assert found["threads"] == before


def test_without_a_place_for_the_cache_loops_are_compiled_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    njit = numba.njit

    def nowhere(*, cache: bool = False, **options: bool) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(numba, "njit", nowhere)
    compiled = jit(lambda x: x + 1)
    monkeypatch.undo()
    assert compiled(2) == 3
