"""The machine a boot ran on, and what makes two machines comparable."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from draftmill.digests import digest
from draftmill.receipts import Host

# What kernels choose their code by.
_ISA = re.compile(r"avx\w*|amx\w*|f16c|fma|sse4_2|asimd\w*|sve\w*|bf16|i8mm|fp16|fphp")
_QUERY = "name,memory.total,compute_cap,driver_version"


def host() -> Host:
    """Of this process: the processors it may use, and all GPUs."""
    cpu, flags = _processor(Path("/proc/cpuinfo"))
    count = len(os.sched_getaffinity(0))
    cards = gpus()
    return Host.model_validate(
        {
            "class": digest({"cpu": cpu, "count": count, "isa": flags, "gpus": cards}),
            "cpu": cpu,
            "cpu_count": count,
            "gpus": cards,
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
        }
    )


def _processor(cpuinfo: Path) -> tuple[str, list[str]]:
    """Model and instruction sets. Linux names both differently on ARM, where the model may be missing."""
    fields = dict(re.findall(r"^([^\t:]+?)\s*:\s*(.*)$", cpuinfo.read_text(), re.M))
    names = (fields.get("flags") or fields.get("Features") or "").split()
    model = fields.get("model name") or fields.get("CPU part") or ""
    return f"{platform.machine()} {model}".strip(), sorted(name for name in names if _ISA.fullmatch(name))


def gpus() -> tuple[str, ...]:
    """Name, memory, compute capability and driver of each NVIDIA GPU; empty without any."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    asked = [tool, f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip()) if done.returncode == 0 else ()
