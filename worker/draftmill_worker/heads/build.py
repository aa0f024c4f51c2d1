"""What decides the bytes of a rewritten head: sources, and how this machine rounds."""

import hashlib
from functools import cache
from pathlib import Path

import torch

import draftmill_worker
from draftmill_worker.quantize.build import QUANTIZER_BUILD


@cache
def heads_build(threads: int | None) -> str:
    """The quantizer's build, this room's sources, and torch with the instructions and threads it sums with: sums in
    another order round otherwise, and a code that lies between two may then fall to the other side."""
    folder = Path(str(draftmill_worker.__file__)).parent
    found = hashlib.sha256(QUANTIZER_BUILD.encode())
    for path in sorted((folder / "heads").rglob("*.py")):
        found.update(f"{path.relative_to(folder).as_posix()} ".encode() + path.read_bytes())
    capability, used = torch.backends.cpu.get_cpu_capability(), threads or torch.get_num_threads()
    found.update(f"{torch.__version__} {capability} {used}".encode())
    return f"{QUANTIZER_BUILD}.{found.hexdigest()[:16]}"
