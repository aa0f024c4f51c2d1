"""The head of a Gemma4 assistant in FP8, and nothing else: DRAFTMILL_FP8_DRAFT_HEAD=fp8_per_tensor asks for it.

The assistant's head is tied to an embedding of its own, which vLLM replaces by the target's: what is left of it is the
head alone, most of what a drafting step reads. It is quantized once loaded, as vLLM's online quantization does it to a
linear: one scale, dynamic activations. Target, embeddings and the assistant's other modules stay as they are.

Whoever asks for it gets it, or an error with every reason why not.
"""

import functools
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from draftmill_worker.bench.vllm_plugin import FP8_DRAFT_HEAD, features
from draftmill_worker.bench.vllm_plugin.targets import PluginError, expect, expect_file

FEATURE = "fp8_draft_head"
VARIABLE = FP8_DRAFT_HEAD
SHORTHAND = "fp8_per_tensor"
SPEC = "fp8_per_tensor_static"
"""What vLLM calls the weight of that shorthand."""
ARCHITECTURE = "Gemma4MTPModel"
_MODEL = "vllm.model_executor.models.gemma4_mtp"
_CLASS = "draftmill_worker.bench.vllm_plugin.fp8_draft_head_model:Gemma4MTP"
_WORKER = "vllm.v1.worker.worker_base:WorkerWrapperBase.init_device"
_RELIED_ON = {
    _MODEL: {"30e68a66fa1c21b1"},
    "vllm.v1.spec_decode.gemma4": {"b81daf1a7deb1fbf"},
    "vllm.v1.worker.gpu.spec_decode.gemma4.speculator": {"a9e55c9db82b75bb"},
    "vllm.model_executor.layers.quantization.online.fp8": {"ce504bea5fb8d7b9", "cb7948d3220fcc1d"},
    "vllm.model_executor.utils": {"9d7d6bee0331cbac", "925ac2b6e14a4ffa"},
}
"""Files that were read, of vLLM 0.32 and 0.33."""


class Condition(NamedTuple):
    holds: bool
    reason: str
    """Why the request is refused where it does not hold."""


def apply() -> list[str]:
    for module, digests in _RELIED_ON.items():
        expect_file(FEATURE, module, digests)
    return [_worker(), _drafter()]


def _worker() -> str:
    """Every worker, of either model runner, is asked before it begins: also one without such a drafter."""
    original = expect(FEATURE, _WORKER, "44ba1102920ebae1", "ee84df25b3ebad12")
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    @functools.wraps(original)
    def init_device(self: Any) -> None:
        require(configured(os.environ.get(VARIABLE, "").strip(), self.vllm_config))
        original(self)

    WorkerWrapperBase.init_device = init_device
    return "worker"


def _drafter() -> str:
    """By name, so that nothing of it is imported before vLLM wants it."""
    from vllm.model_executor.models.registry import ModelRegistry

    if getattr(ModelRegistry.models.get(ARCHITECTURE), "module_name", None) != _MODEL:
        raise PluginError(f"{FEATURE}: {ARCHITECTURE} should be {_MODEL}'s: is another plugin in its place?")
    ModelRegistry.register_model(ARCHITECTURE, _CLASS)
    return "gemma4_mtp"


def require(conditions: Mapping[str, Condition]) -> None:
    """PluginError with the reason of each condition that does not hold."""
    reasons = [f"{name}: {condition.reason}" for name, condition in conditions.items() if not condition.holds]
    if reasons:
        raise PluginError(f"{VARIABLE} cannot be met: {'; '.join(reasons)}")


def configured(asked: str, config: Any) -> dict[str, Condition]:
    """Conditions on an engine's configuration (vLLM's VllmConfig), by name. Those that lack a drafter to judge are left
    out."""
    spec, speculative = online_spec(asked), config.speculative_config
    draft = getattr(speculative, "draft_model_config", None)
    found = {
        "online_spec": Condition(spec == SPEC, f"{asked!r} must be {SHORTHAND}, for vLLM's {SPEC}; it gives {spec}"),
        "role": Condition(
            getattr(draft, "runner_type", None) == "draft", "there is no drafter, and no other head is touched"
        ),
    }
    return found | ({} if draft is None else _drafted(asked, config, speculative, draft))


def _drafted(asked: str, config: Any, speculative: Any, draft: Any) -> dict[str, Condition]:
    named, hf = list(draft.architectures), draft.hf_config
    ranks = {config.parallel_config.tensor_parallel_size, speculative.draft_parallel_config.tensor_parallel_size}
    own = draft.quantization
    return {
        "drafter": Condition(named == [ARCHITECTURE], f"the drafter is {', '.join(named)}, not a Gemma4 assistant"),
        "quantization": Condition(
            own is None or (own == asked and not _on_cpu()), f"the drafter is quantized otherwise, by {own}"
        ),
        "tied": Condition(getattr(hf, "tie_word_embeddings", True) is True, "its head is not tied to its embedding"),
        "ordered": Condition(
            not getattr(hf, "use_ordered_embeddings", False), "its ordered embeddings read the head row by row"
        ),
        "head_dtype": Condition(
            draft.head_dtype == draft.dtype, f"its head is {draft.head_dtype}, the model {draft.dtype}"
        ),
        "tensor_parallel": Condition(ranks == {1}, f"tensor parallel size must be 1, not {max(ranks)}"),
        "kernel": Condition(
            not _on_cpu() or _emulated(), "a CPU's kernel comes with the feature emulation of DRAFTMILL_VLLM_PLUGIN"
        ),
    }


def built(model: Any, dtype: torch.dtype) -> dict[str, Condition]:
    """Conditions on the assistant as vLLM built it (a Gemma4MTP), before its weights are loaded."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod

    head, embedding = model.lm_head, model.model.embed_tokens
    kind, method = type(head), head.quant_method
    prefix, weight = getattr(head, "prefix", ""), head.weight
    return {
        "class": Condition(kind is ParallelLMHead, f"its head is {kind.__qualname__}, not ParallelLMHead"),
        "prefix": Condition(prefix.rpartition(".")[2] == "lm_head", f"its head's prefix {prefix!r} is not lm_head"),
        "method": Condition(
            type(method) is UnquantizedEmbeddingMethod, f"its head has {type(method).__qualname__} already"
        ),
        "tied": Condition(weight is embedding.weight, "its head does not hold its embedding's weight"),
        "ordered": Condition(model.masked_embedding is None, "its ordered embeddings read the head row by row"),
        "head_dtype": Condition(weight.dtype == dtype, f"its head is {weight.dtype}, the model {dtype}"),
        "tensor_parallel": Condition(head.tp_size == 1, f"tensor parallel size must be 1, not {head.tp_size}"),
    }


def online_spec(shorthand: str) -> str | None:
    """What vLLM quantizes linears to under a shorthand of `--quantization`; None for none of its shorthands."""
    from vllm.config.quantization import resolve_quantization_config

    try:
        args = resolve_quantization_config(shorthand, None)
    except ValueError:
        return None
    return None if args is None or args.linear is None else str(args.linear)


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _emulated() -> bool:
    return "emulation" in features()
