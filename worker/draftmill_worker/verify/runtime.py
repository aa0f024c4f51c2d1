"""Module names inside vLLM 0.32, per family, and vLLM's rule for what an `ignore` list excludes.

Read in vLLM's model classes (llama_eagle, llama_eagle3, qwen3_dflash, qwen3_dflash2, qwen3_dspark, gemma4_dspark,
llama, qwen2, qwen3) and in ModelOptQuantConfigBase.is_layer_excluded. Kept apart from what writes the list, so that one
can judge the other.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from draftmill.plans import Family

FUSED: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Linear layers that vLLM builds as one, by its name for them."""
GEMMA4_DSPARK = "gemma4_dspark"
"""A layout of DSpark: its class counts its own layers alone, fuses gate and up only, and passes those names on."""

OFFSET_FAMILIES = frozenset({Family.EAGLE, Family.EAGLE3, Family.DFLASH, Family.DSPARK})
"""Their layers are numbered on from the target's last layer."""
ALIASED_FAMILIES = frozenset({Family.DFLASH, Family.DSPARK})
"""vLLM adds the offset aliases of `layers.<n>` patterns by itself."""
TARGET_DEPTHS = (4, 28, 36, 61)
"""Target layer counts to judge with when the drafter's configuration does not say."""

_DRAFT_LAYER = re.compile(r"(?<![A-Za-z0-9_.])layers\.(\d+)")
# Built without a quantization config, whatever the drafter's says.
_PLAIN = re.compile(r"(^|\.)(embed_tokens|markov_w1|confidence_head|[a-z_]*norm[a-z_]*|candidate_selector)(\.|$)")


@dataclass(frozen=True)
class RuntimeModule:
    name: str
    """vLLM's prefix, such as `model.layers.36.self_attn.qkv_proj`."""
    parts: tuple[str, ...]
    """Checkpoint modules that load into it; none for a head that is borrowed."""
    quantizable: bool
    """False where the engine's class builds it without a quantization config."""


def layout_of(family: Family, config: Mapping[str, Any]) -> str:
    """The family, or the layout of it that vLLM builds otherwise."""
    named = str(config.get("architectures"))
    return GEMMA4_DSPARK if family is Family.DSPARK and "Gemma4DSparkModel" in named else family.value


def fused_layers(layout: str) -> dict[str, tuple[str, ...]]:
    """Linear layers that vLLM builds as one, by its name for them."""
    return {"gate_up_proj": FUSED["gate_up_proj"]} if layout == GEMMA4_DSPARK else FUSED


def _fused_of(layout: str) -> dict[str, str]:
    return {part: fused for fused, parts in fused_layers(layout).items() for part in parts}


def fused_sets(modules: Iterable[str], layout: str = "") -> dict[str, tuple[str, ...]]:
    """Sibling modules that vLLM fuses, by the fused name in checkpoint name space. Singles are left out."""
    found: dict[str, list[str]] = {}
    fused_of = _fused_of(layout)
    for module in modules:
        parent, _, last = module.rpartition(".")
        if last in fused_of:
            found.setdefault(f"{parent}.{fused_of[last]}".lstrip("."), []).append(module)
    return {fused: tuple(sorted(parts)) for fused, parts in found.items()}


def target_depths(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Layer counts of the target: the one the configuration names, else a spread of usual ones."""
    named = config.get("num_target_layers")
    if type(named) is int and named > 0:
        return (named,)
    sections = [section for section in (config, config.get("eagle_config"), config.get("dflash_config")) if section]
    keys = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids")
    lists = [section.get(key) for section in sections if isinstance(section, Mapping) for key in keys]
    tapped = [layer for ids in lists if isinstance(ids, list) for layer in ids if type(layer) is int]
    least = max(tapped, default=1)
    return tuple(sorted({least + 1, *(depth for depth in TARGET_DEPTHS if depth >= least)}))


def runtime_modules(
    family: Family, linears: Iterable[str], config: Mapping[str, Any], depth: int
) -> tuple[RuntimeModule, ...]:
    """What vLLM builds for checkpoint modules with a 2-D weight, beside a target of `depth` layers."""
    groups: dict[str, list[str]] = {}
    layout = layout_of(family, config)
    fused_of = _fused_of(layout)
    for module in linears:
        parent, _, last = _engine_name(layout, module, depth).rpartition(".")
        fused = ".".join(part for part in (parent, fused_of.get(last, last)) if part)
        groups.setdefault(fused, []).append(module)
        if family is Family.EAGLE3 and fused_of.get(last) == "qkv_proj" and _is_qwen3(config):
            # That class builds q/k/v a second time, under the layer's own prefix.
            groups.setdefault(f"{parent.removesuffix('.self_attn')}.qkv_proj", []).append(module)
    head = "draft_model.lm_head" if family is Family.DRAFT_MODEL else "lm_head"
    groups.setdefault(head, [])  # built for every drafter, also where its weight is the target's
    return tuple(
        RuntimeModule(name, tuple(sorted(parts)), _quantizable(layout, name, config))
        for name, parts in sorted(groups.items())
    )


def _is_qwen3(config: Mapping[str, Any]) -> bool:
    if config.get("speculators_model_type"):
        return config.get("model_type") == "qwen3"
    return "Qwen3ForCausalLM" in str(config.get("architectures"))


def _engine_name(layout: str, module: str, depth: int) -> str:
    if layout == Family.DRAFT_MODEL:
        return f"draft_model.{module}"
    if module == "lm_head":
        return module
    name = module.removeprefix("model.")
    name = re.sub(r"^midlayer\.", "layers.0.", name)
    if layout in OFFSET_FAMILIES:
        name = re.sub(r"^layers\.(\d+)", lambda match: f"layers.{int(match[1]) + depth}", name)
    return f"model.{name}"


def _quantizable(layout: str, name: str, config: Mapping[str, Any]) -> bool:
    if name.endswith("lm_head"):
        if layout in (Family.DSPARK, GEMMA4_DSPARK, Family.EAGLE):
            return False
        return layout != Family.DFLASH or config.get("has_own_lm_head") is True
    if layout == GEMMA4_DSPARK and "markov_head" in name:
        return False
    return _PLAIN.search(name) is None


def packed_mapping(layout: str) -> dict[str, tuple[str, ...]]:
    """`packed_modules_mapping` of the drafter's quantization config, which few classes pass on."""
    return dict(fused_layers(layout)) if layout in (Family.DRAFT_MODEL, GEMMA4_DSPARK) else {}


def as_engine_reads(layout: str, ignore: Sequence[str], depth: int, layers: int) -> list[str]:
    """The list after the drafter's class had it: `apply_vllm_mapper`, or `_add_global_draft_layer_exclusions`."""
    if layout in (Family.DRAFT_MODEL, GEMMA4_DSPARK):
        return [part for pattern in ignore for part in _split_wildcard(pattern)]
    result = list(ignore)
    if layout not in ALIASED_FAMILIES or depth == 0:
        return result

    def offset(match: re.Match[str]) -> str:
        return f"layers.{int(match[1]) + depth}" if int(match[1]) < layers else match[0]

    for pattern in ignore:
        alias = _DRAFT_LAYER.sub(offset, pattern)
        if alias not in result:
            result.append(alias)
    return result


def _split_wildcard(pattern: str) -> tuple[str, ...]:
    """`module*` becomes `module` and `module.*`, of which the first matches as a substring too."""
    if len(pattern) >= 2 and pattern[-1] == "*" and pattern[-2] != ".":
        return pattern[:-1], f"{pattern[:-1]}.*"
    return (pattern,)


def excluded(name: str, ignore: Sequence[str], packed: Mapping[str, Sequence[str]]) -> bool:
    """Whether vLLM builds `name` unquantized. ValueError when only some shards of a fused layer are listed."""
    return _skipped(name, ignore, packed) or any(
        (pattern != name and pattern in name) or fnmatchcase(name, pattern) for pattern in ignore
    )


def _skipped(name: str, ignore: Sequence[str], packed: Mapping[str, Sequence[str]]) -> bool:
    last = name.rpartition(".")[2]
    if name in ignore or last not in packed:
        return name in ignore
    listed = {name.replace(last, part) in ignore for part in packed[last]}
    if len(listed) > 1:
        raise ValueError(f"some but not all parts of {name} are excluded")
    return listed.pop()
