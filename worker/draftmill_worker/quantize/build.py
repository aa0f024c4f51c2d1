"""The quantizer's build id: part of a variant's address, since another build may write other bytes."""

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

import draftmill
import draftmill_worker

# Everything that decides a byte of a sealed variant: readers, plan, scales, loops, configs, card, serve command.
_ROOMS = ("checkpoint", "quantize", "assemble")
_MODELS = ("formats.py", "plans.py", "jobs.py")
# Compiled from the same source by another version, a loop should give the same bytes; only this proves it.
_PACKAGES = ("numba", "numpy", "pydantic")


@cache
def _build_id() -> str:
    client, worker = (Path(str(package.__file__)).parent for package in (draftmill, draftmill_worker))
    files = [(f"draftmill/{name}", client / name) for name in _MODELS]
    for room in _ROOMS:
        paths = sorted((worker / room).rglob("*.py"))
        files += [(path.relative_to(worker).as_posix(), path) for path in paths]
    sources = hashlib.sha256()
    for name, path in files:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        sources.update(f"{name} {content}\n".encode())
    for package in _PACKAGES:
        sources.update(f"{package} {version(package)}\n".encode())
    return f"{version('draftmill')}+{sources.hexdigest()[:16]}"


QUANTIZER_BUILD: str = _build_id()
"""Version and 64 bits of a SHA-256 over the sources and packages that decide bytes, such as `0.1.0+6f0c...`."""
