"""A vLLM plugin: what a CPU lacks to measure as a GPU does, and drafting that vLLM lacks everywhere.

Its entry point group is `vllm.general_plugins`. Nothing happens unless the environment variable DRAFTMILL_VLLM_PLUGIN
names features, separated by commas:

emulation     kernels for NVFP4, W4A16 NVFP4, MXFP8, block FP8 and integer weights; a fused op that the CPU build
              lacks is dropped
dspark        DSpark drafters on model runner V1
rmsnorm2d     rms_norm with one weight row per layer, as the context keys of DFlash and DSpark need it
temperature   sampling parameters of a request reach all its draft tokens on model runner V1
draft_vocab   an MTP block drafts from a vocabulary of its own, on every platform
torchvision   Qwen3.5, whose module imports torchvision, loads without it

DRAFTMILL_FP8_DRAFT_HEAD, of its own, has the head of a Gemma4 assistant quantized on loading, on any machine: see
`fp8_draft_head`.

A patch whose target is not the one it was written for raises PluginError: nothing is skipped silently.
"""

import os
from importlib import import_module

from draftmill_worker.bench.vllm_plugin.targets import PluginError

__all__ = ["APPLIED", "FEATURES", "FP8_DRAFT_HEAD", "VARIABLE", "PluginError", "features", "register"]

VARIABLE = "DRAFTMILL_VLLM_PLUGIN"
FEATURES = ("emulation", "dspark", "rmsnorm2d", "temperature", "draft_vocab", "torchvision")
FP8_DRAFT_HEAD = "DRAFTMILL_FP8_DRAFT_HEAD"
APPLIED: list[str] = []
"""Every patch applied in this process, as `feature.patch`, in order."""


def features() -> tuple[str, ...]:
    """The features asked for, in the order of FEATURES. PluginError names those that do not exist."""
    asked = {name.strip() for name in os.environ.get(VARIABLE, "").split(",")} - {""}
    unknown = sorted(asked.difference(FEATURES))
    if unknown:
        raise PluginError(f"{VARIABLE}: no such feature: {', '.join(unknown)}; there are {', '.join(FEATURES)}")
    return tuple(name for name in FEATURES if name in asked)


def register() -> None:
    """Apply the features asked for, each once in a process. vLLM calls this in each of its processes."""
    done = {patch.split(".")[0] for patch in APPLIED}
    own = ("fp8_draft_head",) if os.environ.get(FP8_DRAFT_HEAD, "").strip() else ()
    for feature in (*features(), *own):
        if feature not in done:
            # Imported on demand: a failing import of an entry point is logged and dropped, an error in here is raised.
            patches = import_module(f"{__name__}.{feature}").apply()
            APPLIED.extend(f"{feature}.{patch}" for patch in patches)
