"""A Triton backend named cpu that compiles nothing: with TRITON_INTERPRET=1 every kernel runs in Triton's interpreter.

vLLM takes Triton for usable on a CPU when a backend of that name is installed, and then offers model runner V2.
"""

import os
from pathlib import Path


def environment(folder: Path) -> dict[str, str]:
    """What a child process needs to find the backend; its entry point is written into `folder`, an empty one."""
    info = folder / "triton_cpu_standin-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: triton-cpu-standin\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[triton.backends]\ncpu = {__name__}\n")
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(path),
        "TRITON_INTERPRET": "1",
        "TRITON_DEFAULT_BACKEND": "cpu",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }
