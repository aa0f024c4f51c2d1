"""Engines on one device, one after another, whoever may boot them."""

import subprocess
import sys
from pathlib import Path

from draftmill_worker.bench.turns import turn

HOLD = """
import sys, signal
from pathlib import Path
from draftmill_worker.bench.turns import turn

class Said:
    def log(self, level, message):
        print(message, flush=True)

with turn(Path(sys.argv[1]), sys.argv[2:], Said()):
    print("in", flush=True)
    signal.pause()
"""


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def progress(self, done: int, total: int, unit: str) -> None:
        return

    def log(self, level: str, message: str) -> None:
        self.lines.append(message)


def _holder(data: Path, *devices: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLD, str(data), *devices], stdout=subprocess.PIPE, text=True)


def test_a_device_is_free_when_its_holder_is_killed(tmp_path: Path) -> None:
    with _holder(tmp_path, "gpu1", "gpu0") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        with _holder(tmp_path, "gpu0") as waiter:
            assert waiter.stdout is not None
            assert waiter.stdout.readline() == "waiting for the engine that runs on gpu0\n"
            holder.kill()
            assert waiter.stdout.readline() == "in\n"
            waiter.kill()


def test_other_devices_do_not_wait(tmp_path: Path) -> None:
    said = Said()
    with turn(tmp_path, ["gpu0"], said), turn(tmp_path, ["gpu1", "gpuMIG-GPU-1/2/0"], said):
        assert said.lines == []
    assert len(list((tmp_path / "cache").iterdir())) == 3
