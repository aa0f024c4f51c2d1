"""The engine's environment as a receipt holds it: allow-listed variables, without secrets, addresses or own folders."""

from collections.abc import Mapping
from typing import get_args

from draftmill.benchmarks import EngineEnv
from draftmill_worker.receipts.normalise import DROPPED, Roots, text
from draftmill_worker.receipts.redact import Redactor

ALLOWED = frozenset(get_args(EngineEnv)) | {
    "DRAFTMILL_FP8_DRAFT_HEAD",
    "DRAFTMILL_VLLM_PLUGIN",
    "HF_HUB_OFFLINE",
    "LD_PRELOAD",
    "PYTHONHASHSEED",
    "TOKENIZERS_PARALLELISM",
    "TRANSFORMERS_OFFLINE",
}
PREFIXES = ("VLLM_", "OMP_", "KMP_", "MKL_", "NCCL_", "CUDA_", "TRITON_", "TORCHINDUCTOR_", "FLASHINFER_")
"""Of variables that decide what an engine computes, or how fast."""


def allowed(name: str) -> bool:
    return (name in ALLOWED or name.startswith(PREFIXES)) and not DROPPED.fullmatch(name.lower())


def environment(environ: Mapping[str, str], roots: Roots, redactor: Redactor) -> dict[str, str]:
    """Sorted by name."""
    return {
        name: text(redactor.variable(name, value), roots) for name, value in sorted(environ.items()) if allowed(name)
    }
