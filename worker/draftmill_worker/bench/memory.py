"""Free memory where an engine wants it: before a boot there must be enough, after it all must be back."""

import shutil
import subprocess
import time

import psutil

from draftmill.problems import ProblemError

SLACK_BYTES = 1 << 30
"""What others may take meanwhile: a desktop on the GPU, page tables."""
CPU_BASE_BYTES = 1 << 30
"""An engine's own, beside weights and cache."""
_QUERY = "memory.free,memory.total"


def gpu_memory(shown: str | None = None) -> list[tuple[int, int]]:
    """Free and total bytes of each NVIDIA GPU, or of those that `shown` numbers as CUDA_VISIBLE_DEVICES does; empty
    without any."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    chosen = [] if shown is None else ["-i", shown]
    asked = [tool, *chosen, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        return []
    rows = [line.split(",") for line in done.stdout.splitlines() if line.strip()]
    return [(int(free) << 20, int(total) << 20) for free, total in rows]


def free_bytes(shown: str | None = None) -> int:
    """Of the GPUs together, else of this machine."""
    gpus = gpu_memory(shown)
    return sum(free for free, _ in gpus) if gpus else int(psutil.virtual_memory().available)


def require(weights: int, cache: int, share: float | None, gpus_needed: int, shown: str | None = None) -> None:
    """ProblemError("engine-unavailable") when an engine of this size has no room.

    `weights` and `cache` in bytes; `share` is the part of a GPU's memory that it takes, None by default.
    """
    gpus = gpu_memory(shown)
    if gpus:
        wanted = share or 0.9
        roomy = sum(free >= wanted * total - SLACK_BYTES for free, total in gpus)
        if roomy < gpus_needed:
            detail = f"{roomy} of {len(gpus)} GPUs have {wanted:.0%} of their memory free; {gpus_needed} are needed"
            raise ProblemError("engine-unavailable", detail)
        return
    needed, free = weights + cache + CPU_BASE_BYTES, int(psutil.virtual_memory().available)
    if free < needed:
        raise ProblemError("engine-unavailable", f"the engine needs about {needed} bytes, and {free} are free")


def await_release(before: int, timeout: float, shown: str | None = None) -> bool:
    """Whether a GPU's memory is back after a boot, which can take the driver a moment. A CPU's is back at once."""
    if not gpu_memory(shown):
        return True
    deadline = time.monotonic() + timeout
    while free_bytes(shown) < before - SLACK_BYTES:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True
