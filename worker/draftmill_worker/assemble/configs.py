"""config.json and the index of a variant."""

import math
from typing import Any

from draftmill.plans import Plan
from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.checkpoint.headers import DTYPE_BYTES
from draftmill_worker.quantize.config import quantization_config

SINGLE_FILE = "model.safetensors"
_OLD_QUANTIZATION = ("quantization_config", "compression_config")
# Transformers 5 writes `dtype`; engines and older files read `torch_dtype`.
_DTYPE_KEYS = ("torch_dtype", "dtype")
_FLOATS = ("float64", "float32", "float16", "bfloat16")


def variant_config(checkpoint: Checkpoint, plan: Plan) -> dict[str, Any]:
    """The source's config.json with this variant's quantization and dtype; every other field is kept."""
    config = _without_quantization(checkpoint.config)
    if plan.dtype != "keep":
        config = _with_dtype(config, plan.dtype)
        if not any(key in config for key in _DTYPE_KEYS):
            config["torch_dtype"] = plan.dtype
    # Of a quantization that is merged, what is not said anew stays.
    before = checkpoint.config["quantization_config"] if plan.merged else {}
    config["quantization_config"] = before | quantization_config(plan)
    return config


def needs_index(plan: Plan) -> bool:
    """Loaders find `model.safetensors` by themselves; other names need an index to be read whole."""
    return plan.untouched != () or {tensor.file for tensor in plan.tensors} != {SINGLE_FILE}


def weight_index(checkpoint: Checkpoint, plan: Plan) -> dict[str, Any]:
    """`weight_map` of every output tensor, scales too, and of those in untouched files. `total_size` counts tensor
    bytes, as the headers do."""
    outputs = [(output, tensor.file) for tensor in plan.tensors for output in tensor.outputs]
    total = sum(DTYPE_BYTES[output.dtype] * math.prod(output.shape) for output, _ in outputs)
    whole = {file.file for file in plan.untouched}
    kept = {tensor.name: tensor.file for tensor in checkpoint.tensors.values() if tensor.file in whole}
    return {
        "metadata": {"total_size": total + sum(file.nbytes for file in plan.untouched)},
        "weight_map": kept | {output.name: file for output, file in outputs},
    }


def _without_quantization(config: dict[str, Any]) -> dict[str, Any]:
    """A copy without what described another quantization, in nested configs too."""
    return {
        key: _without_quantization(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in _OLD_QUANTIZATION
    }


def _with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """A copy whose floating dtypes are `dtype`, in nested configs too."""
    return {
        key: _with_dtype(value, dtype)
        if isinstance(value, dict)
        else dtype
        if key in _DTYPE_KEYS and _is_float(value)
        else value
        for key, value in config.items()
    }


def _is_float(value: Any) -> bool:
    return isinstance(value, str) and value.removeprefix("torch.") in _FLOATS
