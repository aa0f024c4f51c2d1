"""A boot from the outside: what it leaves behind is what the engine said, and nothing else."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from draftmill.problems import ProblemError
from draftmill_worker import process
from draftmill_worker.bench import boot
from draftmill_worker.bench.engine_env import engine_environment
from draftmill_worker.receipts.archive import ArchiveWriter, Boot
from tests.support import eventually
from tests.unit.receipts.heads import MemoryHeads

ROOT = Path(__file__).parents[3]
Launch = Callable[..., boot.Launched]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Boot]:
    monkeypatch.setattr(boot, "MODULE", "tests.unit.bench.fake_engine")
    writer = ArchiveWriter(tmp_path / "receipts", "tester", MemoryHeads())
    return lambda act: writer.open(act.encode())


def _launch(opened: Boot, tmp_path: Path, deadline: float = 60.0, seen: list[int] | None = None) -> boot.Launched:
    home = tmp_path / "home"
    environment = engine_environment(home, {}, {}, cpu=True) | {"PYTHONPATH": f"{ROOT}:{os.pathsep.join(sys.path)}"}
    return boot.launch(opened, environment, home, deadline, (seen if seen is not None else []).append)


def _pid(opened: Boot, word: str) -> int:
    match = re.search(rf"{word} (\d+)", opened.stdout.read_text())
    assert match is not None
    return int(match[1])


def _gone(pid: int) -> bool:
    found = process.find(pid)
    return found is None or not process.alive(found)


def test_a_boot_is_a_session_of_its_own_and_says_how_far_it_is(opened: Callable[[str], Boot], tmp_path: Path) -> None:
    one, seen = opened("well"), list[int]()
    launched = _launch(one, tmp_path, seen=seen)
    assert launched.result.timings == {"run": 1.0}
    pid = _pid(one, "engine")
    assert f"engine {pid} of session {pid}" in one.stdout.read_text()
    assert launched.argv[1:3] == ("-m", "tests.unit.bench.fake_engine")
    assert not seen or seen[-1] <= 3


def test_its_environment_is_made_anew(
    opened: Callable[[str], Boot], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz")
    monkeypatch.setenv("DRAFTMILL_REDIS_URL", "redis://:secret@127.0.0.1/0")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    one = opened("variables")
    _launch(one, tmp_path)
    lines = dict(line.partition("=")[::2] for line in one.stdout.read_text().splitlines() if "=" in line)
    assert not {"HF_TOKEN", "DRAFTMILL_REDIS_URL", "VLLM_USE_V2_MODEL_RUNNER"} & lines.keys()
    home = tmp_path / "home"
    assert Path(lines["VLLM_CACHE_ROOT"]).is_relative_to(home)
    assert Path(lines["HF_HOME"]).is_relative_to(home)
    assert lines["HF_HUB_OFFLINE"] == lines["TRANSFORMERS_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("act", "says"),
    [
        ("crash", "ended with exit status 7"),
        ("killed", "died of SIGKILL"),
        ("silent", "ended with exit status 0"),
        ("garbage", "cannot be read"),
    ],
)
def test_an_engine_that_fails_is_a_boot_that_failed(
    act: str, says: str, opened: Callable[[str], Boot], tmp_path: Path
) -> None:
    with pytest.raises(ProblemError, match=says) as caught:
        _launch(opened(act), tmp_path)
    assert caught.value.problem.slug == "boot-failed"
    assert isinstance(caught.value, boot.EngineKilledError) == (act == "killed")


def test_its_last_words_are_told_without_secrets(opened: Callable[[str], Boot], tmp_path: Path) -> None:
    one = opened("crash")
    with pytest.raises(ProblemError) as caught:
        _launch(one, tmp_path)
    words = [offender.message for offender in caught.value.problem.offenders]
    assert words == ["loading", "RuntimeError: no kernel, token <redacted>"]
    # The archive keeps the raw bytes.
    assert b"hf_abcdefghijklmnopqrstuvwxyz" in one.stderr.read_bytes()


@pytest.mark.parametrize("act", ["children hang", "children well", "children killed", "children crash"])
def test_nothing_is_left_behind(act: str, opened: Callable[[str], Boot], tmp_path: Path) -> None:
    one = opened(act)
    started = time.monotonic()
    with contextlib.suppress(ProblemError):
        _launch(one, tmp_path, deadline=6.0)
    assert time.monotonic() - started < 30
    assert _gone(_pid(one, "engine"))
    assert _gone(_pid(one, "child"))


def test_it_dies_with_the_stage(tmp_path: Path) -> None:
    """kill -9 of the process that launched it."""
    script = f"""
import sys, os
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from draftmill_worker.bench import boot
from tests.unit.bench.test_boot import _launch
from draftmill_worker.receipts.archive import ArchiveWriter
from tests.unit.receipts.heads import MemoryHeads
boot.MODULE = "tests.unit.bench.fake_engine"
folder = Path({str(tmp_path)!r})
_launch(ArchiveWriter(folder / "receipts", "tester", MemoryHeads()).open(b"hang"), folder)
"""
    with subprocess.Popen([sys.executable, "-c", script]) as stage:
        log = eventually(lambda: next(tmp_path.glob("receipts/*/stdout.log"), None), timeout=60)
        assert log is not None
        eventually(lambda: "engine" in log.read_text(), timeout=60)
        match = re.search(r"engine (\d+)", log.read_text())
        assert match is not None
        engine = psutil.Process(int(match[1]))
        stage.send_signal(signal.SIGKILL)
    eventually(lambda: not process.alive(engine), timeout=10)
    assert not list(tmp_path.glob("receipts/*/MANIFEST")), "a boot that died must read as incomplete"
