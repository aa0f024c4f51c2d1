"""Engine boots, each in a fresh process, each made once."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from draftmill.formats import Format
from draftmill_worker.bench.vllm_plugin import FEATURES
from tests.e2e.vllm_plugin.boot import Request, Result, parse
from tests.e2e.vllm_plugin.triton_cpu import environment
from tests.fixtures.engine_process import ask_engine

Variant = Callable[[str, Format | None], Path]
"""The folder of a shipped drafter in a format; None is bf16, as it is shipped."""


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
        more = environment(folder / "triton") if interpreted else {}
        cache, asked_for = self._folder / "cache", ",".join(features)
        return parse(ask_engine("tests.e2e.vllm_plugin.boot", line, cache, asked_for, timeout=1500, **more))
