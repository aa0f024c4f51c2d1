"""Engine boots, each in a fresh process, each made once."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from draftmill.formats import Format
from draftmill_worker.bench.vllm_plugin import FEATURES, VARIABLE
from tests.e2e.vllm_plugin.boot import Request, Result, parse
from tests.e2e.vllm_plugin.triton_cpu import environment

Variant = Callable[[str, Format | None], Path]
"""The folder of a shipped drafter in a format; None is bf16, as it is shipped."""
ROOT = Path(__file__).parents[3]


class Boots:
    """Answers the same request from the boot that was made for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, tuple[str, ...], bool], Result] = {}

    def __call__(self, request: Request, features: tuple[str, ...] = FEATURES, *, interpreted: bool = False) -> Result:
        """`interpreted`: on model runner V2, its Triton kernels under Triton's interpreter."""
        line = json.dumps(asdict(request))
        key = (line, features, interpreted)
        if key not in self._made:
            self._made[key] = self._boot(line, features, interpreted, Path(tempfile.mkdtemp(dir=self._folder)))
        return self._made[key]

    def _boot(self, line: str, features: tuple[str, ...], interpreted: bool, folder: Path) -> Result:
        ours = {
            VARIABLE: ",".join(features),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",
            # Shared: nothing is compiled, and what vLLM finds out about a model class takes it a process of its own.
            "VLLM_CACHE_ROOT": str(self._folder / "cache"),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_USE_V2_MODEL_RUNNER": "0",
        }
        if interpreted:
            ours |= environment(folder / "triton")
        done = subprocess.run(
            [sys.executable, "-m", "tests.e2e.vllm_plugin.boot"],
            input=line,
            env={**os.environ, **ours},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
        assert done.returncode == 0, f"the engine ended with {done.returncode}:\n{done.stderr[-6000:]}"
        return parse(done.stdout.strip().splitlines()[-1])
