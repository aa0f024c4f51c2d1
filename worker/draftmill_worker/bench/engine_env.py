"""The environment of an engine process: a short list, made anew. Nothing of the worker's own passes by itself."""

import os
from collections.abc import Mapping
from pathlib import Path

from draftmill.benchmarks import EngineEnv
from draftmill.problems import Offender, ProblemError

BASE = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_VISIBLE_DEVICES")
"""What passes from the worker: where programs and libraries are. No token, no address, no proxy."""
KV_CACHE_GIB = "1"


def engine_environment(
    home: Path, route: Mapping[str, str], asked: Mapping[EngineEnv, str], *, cpu: bool
) -> dict[str, str]:
    """`home` is the boot's own folder: home, temporary files and compile cache all lie in it. `asked` has been checked
    against the list of what a job may set, and wins."""
    kept = {name: os.environ[name] for name in BASE if name in os.environ}
    own = {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        # Compiled graphs of another drafter or length must not be found here.
        "VLLM_CACHE_ROOT": str(home / "vllm"),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
    }
    if cpu:
        # Idle threads that spin cost more than they give on few cores.
        own |= {
            "OMP_NUM_THREADS": str(_threads()),
            "OMP_WAIT_POLICY": "passive",
            "VLLM_CPU_KVCACHE_SPACE": KV_CACHE_GIB,
        }
    return kept | own | dict(route) | {str(name): value for name, value in asked.items()}


def cache_bytes(asked: Mapping[EngineEnv, str]) -> int:
    """What a CPU engine allocates for keys and values. ProblemError("invalid-request") when that is no number."""
    value = asked.get("VLLM_CPU_KVCACHE_SPACE", KV_CACHE_GIB)
    if not value.isdecimal():
        where = "benchmark.engine_env.VLLM_CPU_KVCACHE_SPACE"
        raise ProblemError("invalid-request", f"{where} must be whole GiB", [Offender(where=where, message=value)])
    return int(value) << 30


def _threads() -> int:
    asked = os.environ.get("DRAFTMILL_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else len(os.sched_getaffinity(0))
