"""Processes that supervise or answer preflights stay light: they load neither torch nor what comes with it."""

import os
import subprocess
import sys

import pytest

HEAVY = {"torch", "numba", "modelopt", "vllm"}


@pytest.mark.parametrize(
    "module",
    [
        "draftmill_worker.tasks",
        "draftmill_worker.launcher",
        "draftmill_worker.stages.preflight",
        "draftmill_service.cli",
    ],
)
def test_nothing_heavy_is_imported(module: str) -> None:
    code = f"import sys, {module}; print(*(sys.modules.keys() & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        (
            "from draftmill.cli.main import build; build('quantize'); import draftmill_worker.mill",
            {"httpx", "httpx2", "huggingface_hub", "rich", "numba"},
        ),
        (
            "from draftmill_worker.quantize.kernels import warm_up; warm_up()",
            {"scipy.linalg", "torch"},
        ),
    ],
)
def test_quantizing_alone_starts_without_what_it_does_not_use(code: str, unused: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*(sys.modules.keys() & {unused!r}))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []


# A torch that was built with CUDA and would have to ask the driver, which counts the questions.
PRELOAD = """
import os
import torch
asked = []
torch.cuda._is_compiled = lambda: True
torch._C._cuda_getCurrentRawStream = None
torch._C._cuda_getDeviceCount = lambda: asked.append("driver") or 0
torch.cuda._lazy_init = lambda: asked.append("init")
from draftmill_worker import template
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
template.preload("draftmill_worker.stages")
print(asked, os.environ["CUDA_VISIBLE_DEVICES"], "PYTORCH_NVML_BASED_CUDA_CHECK" in os.environ)
torch.cuda.is_available()
print(asked)
"""


def test_c98_the_template_does_not_touch_cuda_and_its_forks_may() -> None:
    # vLLM, imported by a neighbouring test, leaves the variable behind.
    environment = {name: value for name, value in os.environ.items() if name != "PYTORCH_NVML_BASED_CUDA_CHECK"}
    done = subprocess.run([sys.executable, "-c", PRELOAD], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["[] 0 False", "['driver']"]
