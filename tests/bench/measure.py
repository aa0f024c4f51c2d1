"""One program run to its end: wall time, CPU seconds and peak memory, measured from outside."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

_INTERVAL = 0.01


@dataclass(frozen=True)
class Measured:
    wall: float
    """Seconds from before the process existed until after it was gone."""
    cpu: float
    """User and system seconds, of its children too."""
    anonymous: int
    """Peak bytes of anonymous memory (RssAnon, sampled every 10 ms): what cannot be dropped under pressure."""
    output: str


def run(arguments: list[str]) -> Measured:
    """Runs a command in a quiet file system: dirty pages of earlier runs are written out first."""
    os.sync()
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        started = time.perf_counter()
        child = subprocess.Popen(arguments, stdout=output, stderr=errors)
        peak = [0]
        done = threading.Event()
        sampler = threading.Thread(target=_sample, args=(child.pid, peak, done))
        sampler.start()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - started
        done.set()
        sampler.join()
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if child.returncode:
            sys.exit(f"{' '.join(arguments)} failed:\n{errors.read()}")
        return Measured(wall, usage.ru_utime + usage.ru_stime, peak[0], output.read())


def _sample(pid: int, peak: list[int], done: threading.Event) -> None:
    status = Path(f"/proc/{pid}/status")
    while not done.wait(_INTERVAL):
        try:
            lines = status.read_text().splitlines()
        except OSError:
            return
        found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")]
        peak[0] = max([*peak, *found])
