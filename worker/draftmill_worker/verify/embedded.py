"""A target with its MTP block inside vLLM 0.32: module names, and how the one `ignore` list is read by both.

Read in vLLM's qwen3_5, qwen3_5_mtp, qwen3_next, qwen3_next_mtp, qwen3_vl, glm4_moe and glm4_moe_mtp. Kept apart from
what writes the list, so that one can judge the other.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draftmill_worker.verify.runtime import FUSED, RuntimeModule

_GDN: dict[str, tuple[str, ...]] = {
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
PACKED = FUSED | _GDN
"""`packed_modules_mapping` of the quantization config, which target and block share."""
_FUSED_OF = {part: fused for fused, parts in PACKED.items() for part in parts}
_TEXT = {"model.language_model.": "model."}
_IMAGES = {
    "model.visual.": "visual.",
    "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model.",
}
_RENAMES: dict[str, dict[str, str]] = {
    "Qwen3_5ForCausalLM": _TEXT,
    "Qwen3_5MoeForCausalLM": _TEXT,
    "Qwen3_5ForConditionalGeneration": _IMAGES,
    "Qwen3_5MoeForConditionalGeneration": _IMAGES,
}
"""`hf_to_vllm_mapper` of the targets that have one: prefixes and what takes their place."""
_FP4_PLAIN = re.compile(r"^mtp\.fc$")
# Built without a quantization config: embeddings, norms, routers, and GLM's plain linear layer.
_PLAIN = re.compile(
    r"(^|\.)(embed_tokens|eh_proj|conv1d|[a-z_]*norm[a-z_]*|mlp\.gate|shared_expert_gate|patch_embed|pos_embed)(\.|$)"
)
_PAST = re.compile(r"model\.layers\.(\d+)\.")


def language(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def target_layers(config: Mapping[str, Any]) -> int:
    layers = language(config).get("num_hidden_layers")
    return layers if type(layers) is int else 0


def in_block(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a tensor or module is the MTP block's, by its checkpoint name."""
    past = _PAST.match(name)
    return name.startswith("mtp.") or (past is not None and int(past[1]) >= target_layers(config))


def renames(config: Mapping[str, Any]) -> dict[str, str]:
    return next((_RENAMES[name] for name in config.get("architectures") or () if name in _RENAMES), {})


def renamed(name: str, prefixes: Mapping[str, str]) -> str:
    return next((new + name[len(old) :] for old, new in prefixes.items() if name.startswith(old)), name)


def runtime_modules(linears: Iterable[str], config: Mapping[str, Any], method: str) -> tuple[RuntimeModule, ...]:
    """What vLLM builds for checkpoint modules with a weight matrix, of the target and of the block.

    `method` is the quantization's name, under some of which a module of the block is built plain.
    """
    groups: dict[str, list[str]] = {}
    for module in linears:
        parent, _, last = _engine_name(module, config).rpartition(".")
        groups.setdefault(".".join(part for part in (parent, _FUSED_OF.get(last, last)) if part), []).append(module)
    groups.setdefault("lm_head", [])
    if "Glm4MoeForCausalLM" in (config.get("architectures") or ()):
        for name in [name for name in groups if name.endswith(".eh_proj")]:
            groups.setdefault(name.replace(".eh_proj", ".head"), [])
    return tuple(
        RuntimeModule(name, tuple(sorted(parts)), _quantizable(name, method)) for name, parts in sorted(groups.items())
    )


def _engine_name(module: str, config: Mapping[str, Any]) -> str:
    name = re.sub(r"\.experts\..*", ".experts", module).replace(".shared_head.head", ".head")
    return renamed(f"{name}.", renames(config)).removesuffix(".")


def _quantizable(name: str, method: str) -> bool:
    if _FP4_PLAIN.match(name) and method == "modelopt_fp4":
        return False
    return _PLAIN.search(name) is None


def as_engine_reads(ignore: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """The list after `apply_vllm_mapper`: wildcards split, then renamed as the target's tensors are."""
    found = renames(config)
    parts = [part for pattern in ignore for part in _split_wildcard(pattern)]
    return [renamed(part, found) for part in parts]


def _split_wildcard(pattern: str) -> tuple[str, ...]:
    if len(pattern) >= 2 and pattern[-1] == "*" and pattern[-2] != ".":
        return pattern[:-1], f"{pattern[:-1]}.*"
    return (pattern,)
