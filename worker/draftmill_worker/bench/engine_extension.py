"""What the engine really built, seen from inside: mixed into vLLM's worker class by `worker_extension_cls`.

vLLM imports this module in each of its worker processes before it loads a model. Importing it hooks the loading of the
drafter, so that the target is digested just before.
"""

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from draftmill.receipts import DraftMapRecord, EmbeddingRecord, EngineView, HeadRecord, ModuleRecord
from draftmill_worker.bench.draft_head_view import draft_head
from draftmill_worker.bench.engine_modules import named, same_storage

CHUNK = 1 << 22
"""Elements that are looked at in one piece."""
SAMPLED = 1024
"""Elements of a parameter that go into the target's digest, evenly spaced."""
_SCALES = ("_scale", "_scale_2", "_scale_inv", "alpha", "alphas")
_BEFORE: list[str] = []


def _hook_loading() -> None:
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
    from vllm.v1.spec_decode.medusa import MedusaProposer
    from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

    for owner in (SpecDecodeBaseProposer, MedusaProposer, DraftModelSpeculator):
        owner.load_model = _digesting(owner.load_model)


def _digesting(load_model: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load_model)
    def load(self: Any, target_model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        _BEFORE[:] = [_digest(target_model)]
        return load_model(self, target_model, *args, **kwargs)

    return load


class Extension:
    """Called through `collective_rpc`; `self` is vLLM's worker."""

    def draftmill_view(self) -> dict[str, Any]:
        """An EngineView as JSON."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        proposer = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
        drafter, target = getattr(proposer, "model", None), runner.get_model()
        view = EngineView(
            runner=_runner(runner),
            proposer="" if proposer is None else type(proposer).__name__,
            drafter_class=None if drafter is None else type(drafter).__name__,
            modules=() if drafter is None else tuple(_modules(drafter)),
            head=None if drafter is None else _head(drafter, target),
            embedding=None if drafter is None else _embedding(drafter, target),
            draft_head=None if drafter is None else draft_head(drafter, target, runner.vllm_config),
            draft_map=None if drafter is None else _draft_map(drafter),
            target_methods=_methods(target),
            target_digest_before=next(iter(_BEFORE), None),
            target_digest_after=_digest(target),
            kv_cache_tokens=_kv_cache_tokens(runner.vllm_config.cache_config),
        )
        return view.model_dump(mode="json")

    def draftmill_plugins(self) -> list[str]:
        """Patches that the vLLM plugin applied in this process."""
        from draftmill_worker.bench.vllm_plugin import APPLIED

        return list(APPLIED)


def _runner(runner: Any) -> str:
    modules = [owner.__module__ for owner in type(runner).__mro__]
    if modules[0].startswith("draftmill_worker."):
        return "v1+plugin"
    # A CPU's V2 derives from the GPU's, as its V1 does from the GPU's V1 (vllm.v1.worker.gpu_model_runner).
    return "v2" if any(module.startswith("vllm.v1.worker.gpu.") for module in modules) else "v1"


def _kv_cache_tokens(config: Any) -> int | None:
    blocks = config.num_gpu_blocks
    return None if blocks is None else int(blocks) * int(config.block_size)


def _modules(model: nn.Module) -> Iterator[ModuleRecord]:
    """Every module with a weight matrix that multiplies: linears and heads, neither norms nor embeddings."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for name, module in model.named_modules():
        if isinstance(module, LinearBase | ParallelLMHead | nn.Linear):
            yield _module(name, module)


def _methods(model: nn.Module) -> dict[str, int]:
    """Number of modules that multiply by each quantization method's class; experts count as one."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    found: Counter[str] = Counter()
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(module, LinearBase | ParallelLMHead) or type(module).__name__ == "RoutedExperts":
            found["none" if method is None else type(method).__name__] += 1
    return dict(found)


def _module(name: str, module: nn.Module) -> ModuleRecord:
    method = getattr(module, "quant_method", None)
    weight = _weight(module)
    return ModuleRecord(
        name=name,
        class_name=type(module).__name__,
        method=None if method is None else type(method).__name__,
        kernel=_kernel(getattr(module, "scheme", None)) or _kernel(method),
        weight_dtype=None if weight is None else str(weight.dtype).removeprefix("torch."),
        weight_shape=() if weight is None else tuple(weight.shape),
        prefix=getattr(module, "prefix", None),
        scheme=_scheme(module, method),
        scales=dict(_scales(module)),
    )


def _weight(module: nn.Module | None) -> torch.Tensor | None:
    """Integers are packed under a name of their own."""
    weight = getattr(module, "weight", None)
    return getattr(module, "weight_packed", None) if weight is None else weight


def _scheme(module: nn.Module, method: Any) -> dict[str, str | None]:
    """What weights and activations are quantized to: ModelOpt's keys, or what a scheme of compressed-tensors holds."""
    spec = getattr(method, "spec", None)
    if spec is not None:
        return {role: _key(getattr(spec, role)) for role in ("weight", "activation")}
    scheme: Any = getattr(module, "scheme", None)
    kind = getattr(scheme, "quant_type", None)
    return {} if kind is None else {"weight": f"{kind}, group {scheme.group_size}", "activation": None}


def _key(key: Any) -> str | None:
    return None if key is None else str(key)


def _kernel(method: Any) -> str | None:
    kernel = getattr(method, "kernel", None) or getattr(method, "fp8_linear", None)
    return None if kernel is None else type(kernel).__name__


def _scales(module: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    for name, tensor in tensors:
        if name.endswith(_SCALES):
            yield name, _scale(tensor)


def _scale(tensor: torch.Tensor) -> dict[str, Any]:
    least, most, finite, sentinel = float("inf"), float("-inf"), True, False
    unset = torch.finfo(torch.float32).min
    for chunk in _chunks(tensor):
        # What allocation leaves on a scale that loading skipped: the smallest float32, or NaN.
        sentinel = sentinel or bool(((chunk == unset) | chunk.isnan()).any())
        finite = finite and bool(chunk.isfinite().all())
        least, most = min(least, float(chunk.min())), max(most, float(chunk.max()))
    return {
        "dtype": str(tensor.dtype),
        "shape": list(tensor.shape),
        "min": least,
        "max": most,
        "finite": finite,
        "sentinel": sentinel,
    }


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """As float32, piece by piece."""
    flat = tensor.detach().reshape(-1)
    for start in range(0, flat.numel(), CHUNK):
        yield flat[start : start + CHUNK].float()


def _head(drafter: nn.Module, target: nn.Module) -> HeadRecord | None:
    head, theirs = named(drafter, "lm_head"), named(target, "lm_head")
    weight = _weight(head)
    if head is None or weight is None:
        return None
    record = _module("lm_head", head)
    embedding = named(drafter, "embed_tokens")
    scales = list(record.scales.values())
    return HeadRecord(
        class_name=record.class_name,
        method=record.method,
        kernel=record.kernel,
        dtype=str(weight.dtype).removeprefix("torch."),
        shape=_shape(head, weight),
        finite=_finite(head, weight),
        scale_positive=all(_positive(scale) for scale in scales) if scales else None,
        shares_target_head=same_storage(head, theirs),
        shares_target_embedding=same_storage(embedding, named(target, "embed_tokens")),
    )


def _shape(head: nn.Module, weight: torch.Tensor) -> tuple[int, ...]:
    """A CPU build may have packed the weight away, leaving an empty tensor."""
    if weight.numel():
        return tuple(weight.shape)
    return (int(getattr(head, "num_embeddings_per_partition", 0)), int(getattr(head, "embedding_dim", 0)))


def _finite(head: Any, weight: torch.Tensor) -> bool:
    if weight.numel():
        return not weight.is_floating_point() or all(bool(chunk.isfinite().all()) for chunk in _chunks(weight))
    # No element of a row can hide in its sum: Inf and NaN stay, whatever is added.
    ones = torch.ones(1, int(head.embedding_dim), dtype=weight.dtype, device=weight.device)
    return bool(head.quant_method.apply(head, ones).isfinite().all())


def _positive(scale: dict[str, Any]) -> bool:
    # Rows that pad a vocabulary have a scale of zero.
    return bool(scale["finite"] and scale["min"] >= 0 and scale["max"] > 0)


def _embedding(drafter: nn.Module, target: nn.Module) -> EmbeddingRecord | None:
    embedding = named(drafter, "embed_tokens")
    weight = getattr(embedding, "weight", None)
    if weight is None:
        return None
    return EmbeddingRecord(
        class_name=type(embedding).__name__,
        dtype=str(weight.dtype).removeprefix("torch."),
        shape=tuple(weight.shape),
        shares_target_embedding=same_storage(embedding, named(target, "embed_tokens")),
    )


def _draft_map(drafter: nn.Module) -> DraftMapRecord | None:
    for name, tensor in [*drafter.named_parameters(), *drafter.named_buffers()]:
        if name.rpartition(".")[2] == "draft_id_to_target_id":
            values = tensor.detach().to("cpu", torch.int64).contiguous()
            return DraftMapRecord(size=values.numel(), sha256=hashlib.sha256(values.numpy().tobytes()).hexdigest())
    return None


def _digest(model: nn.Module) -> str:
    """Over names, shapes, dtypes and evenly spaced elements of all parameters."""
    found = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        flat = parameter.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // SAMPLED)].cpu().contiguous()
        found.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        found.update(sample.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


_hook_loading()
