"""A draft head that was quantized on loading, seen from inside the engine: see `engine_extension`."""

import os
from typing import Any

import torch
from torch import nn

from draftmill.receipts import DraftHeadRecord
from draftmill_worker.bench.engine_modules import named, same_storage
from draftmill_worker.bench.vllm_plugin import FP8_DRAFT_HEAD

SCALES = 16


def draft_head(drafter: nn.Module, target: nn.Module, config: Any) -> DraftHeadRecord | None:
    """None where none was asked for. `config` is the engine's VllmConfig."""
    asked = os.environ.get(FP8_DRAFT_HEAD, "").strip()
    if not asked:
        return None
    head, embedding = named(drafter, "lm_head"), named(drafter, "embed_tokens")
    target_head, target_embedding = named(target, "lm_head"), named(target, "embed_tokens")
    return DraftHeadRecord.model_validate(
        {
            "asked": asked,
            **_configured(config),
            **({} if head is None else _built(head)),
            "shares_draft_embedding": _shared(head, embedding),
            "shares_target_embedding": _shared(head, target_embedding),
            "draft_embedding_shares_target": _shared(embedding, target_embedding),
            "draft_embedding_dtype": _dtype(embedding),
            "target_head_dtype": _dtype(target_head),
            "target_head_method": _path(getattr(target_head, "quant_method", None)),
        }
    )


def _configured(config: Any) -> dict[str, Any]:
    draft = config.speculative_config.draft_model_config
    text = draft.hf_config.get_text_config()
    return {
        "hidden_size": getattr(text, "hidden_size", None),
        "vocab_size": getattr(text, "vocab_size", None),
        "tensor_parallel_size": max(
            config.parallel_config.tensor_parallel_size,
            config.speculative_config.draft_parallel_config.tensor_parallel_size,
        ),
    }


def _built(head: Any) -> dict[str, Any]:
    method, weight, scale = getattr(head, "quant_method", None), head.weight, getattr(head, "weight_scale", None)
    kernel, spec = getattr(method, "fp8_linear", None), getattr(method, "spec", None)
    return {
        "spec": None if spec is None else str(spec),
        "conditions": getattr(method, "conditions", {}),
        "partition": (head.num_embeddings_per_partition, head.embedding_dim),
        "class_name": _path(head),
        "prefix": getattr(head, "prefix", None),
        "method": _path(method),
        "kernel": None if kernel is None else type(kernel).__name__,
        "weight_dtype": _dtype(head),
        "weight_shape": tuple(weight.shape),
        "scale": () if scale is None else tuple(scale.detach().reshape(-1)[:SCALES].tolist()),
    }


def _shared(one: nn.Module | None, other: nn.Module | None) -> bool | None:
    """None where one of them is not there: nothing was compared."""
    found = all(isinstance(getattr(module, "weight", None), torch.Tensor) for module in (one, other))
    return same_storage(one, other) if found else None


def _dtype(module: nn.Module | None) -> str | None:
    weight = getattr(module, "weight", None)
    return str(weight.dtype).removeprefix("torch.") if isinstance(weight, torch.Tensor) else None


def _path(value: object) -> str | None:
    return None if value is None else f"{type(value).__module__}.{type(value).__qualname__}"
