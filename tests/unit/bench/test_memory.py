"""Whether there is room for an engine, by what nvidia-smi says or else by this machine's memory."""

import os
from pathlib import Path

import pytest

from draftmill.problems import ProblemError
from draftmill_worker.bench import memory

GIB = 1 << 30


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvidia-smi that prints what is written here."""
    answer, tool = tmp_path / "answer", tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat {answer}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return answer


def test_enough_gpus_must_be_free(smi: Path) -> None:
    smi.write_text("80000, 81920\n10000, 81920\n")
    memory.require(GIB, GIB, None, 1)
    with pytest.raises(ProblemError, match="1 of 2 GPUs"):
        memory.require(GIB, GIB, None, 2)
    memory.require(GIB, GIB, 0.1, 2)


def test_memory_that_does_not_come_back_is_seen(smi: Path) -> None:
    smi.write_text("80000, 81920\n")
    before = memory.free_bytes()
    assert memory.await_release(before, 0.0)
    smi.write_text("20000, 81920\n")
    assert not memory.await_release(before, 0.0)


def test_a_cpu_needs_weights_cache_and_the_engine_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "gpu_memory", lambda _: [])
    memory.require(0, 0, None, 1)
    with pytest.raises(ProblemError, match="engine-unavailable"):
        memory.require(1 << 50, GIB, None, 1)
