"""The compressed-tensors section of a configuration, with a group for what was rewritten."""

import copy
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftmill.problems import Offender, ProblemError
from draftmill_worker.quantize.formats.pack_quantized import GROUP

METHOD, FORMAT = "compressed-tensors", "pack-quantized"
MIXED = "mixed-precision"
SECTION = "quantization_config"
SIDECAR = "quantization_config.json"
HEAD = ("re:.*lm_head$",)
"""Also the draft head's group: the pattern matches `mtp.draft_lm_head`."""
EMBEDDING = ("re:.*embed_tokens$", "VocabParallelEmbedding")
"""vLLM hands an embedding its name in some models (Qwen3), and in others nothing, so that the class name decides."""


@dataclass(frozen=True)
class Group:
    name: str
    targets: tuple[str, ...]
    bits: int
    modules: tuple[str, ...]
    """Rewritten modules that it is for, by their names in the checkpoint."""


def group_entry(group: Group) -> dict[str, Any]:
    """As compressed-tensors' QuantizationScheme writes weights of signed integers, one bf16 scale per 128 columns."""
    return {
        "targets": list(group.targets),
        "weights": {
            "num_bits": group.bits,
            "type": "int",
            "symmetric": True,
            "strategy": "group",
            "group_size": GROUP,
            "dynamic": False,
        },
        "input_activations": None,
        "output_activations": None,
        "format": FORMAT,
    }


def with_groups(config: Mapping[str, Any], groups: Sequence[Group], plain: Collection[str]) -> dict[str, Any]:
    """A configuration whose first groups are these: the first that matches a layer wins.

    `plain` are the modules that stay as they are. Groups that were for the same targets alone are dropped, and `ignore`
    names no rewritten module. ProblemError("head-refused") for a checkpoint that another method quantized: one
    configuration cannot say both.
    """
    changed = copy.deepcopy(dict(config))
    section = changed.get(SECTION) or {}
    method = section.get("quant_method", METHOD)
    if method != METHOD:
        message = f"is quantized by {method}; heads are stored as {METHOD}, and a checkpoint has one method"
        raise ProblemError("head-refused", message, [Offender(where=f"config.json: {SECTION}", message=message)])
    changed[SECTION] = merged(section, groups, plain)
    return changed


def merged(section: Mapping[str, Any], groups: Sequence[Group], plain: Collection[str]) -> dict[str, Any]:
    ours = {target for group in groups for target in group.targets}
    names = {group.name for group in groups}
    old = dict(section.get("config_groups") or {})
    kept = {
        name: _with_format(entry, section.get("format"))
        for name, entry in old.items()
        if name not in names and not set(entry.get("targets") or ()) <= ours
    }
    entries = {group.name: group_entry(group) for group in groups} | kept
    formats = {entry["format"] for entry in entries.values()}
    return {
        **section,
        "quant_method": METHOD,
        "quantization_status": "compressed",
        "format": FORMAT if formats == {FORMAT} else MIXED,
        "config_groups": entries,
        "ignore": _ignore(section.get("ignore") or (), [name for group in groups for name in group.modules], plain),
    }


def _with_format(entry: Mapping[str, Any], whole: Any) -> dict[str, Any]:
    """A group without a format of its own has that of the whole section, which may change."""
    return {**entry, "format": entry.get("format") or whole}


def _ignore(entries: Iterable[str], rewritten: Sequence[str], plain: Collection[str]) -> list[str]:
    """Without the entries that match a rewritten module; what else such a pattern kept out is named one by one."""
    kept: list[str] = []
    for entry in entries:
        if any(matches(name, entry) for name in rewritten):
            kept += [name for name in plain if matches(name, entry) and name not in rewritten]
        else:
            kept.append(entry)
    return list(dict.fromkeys(kept))


def matches(name: str, target: str) -> bool:
    """As compressed-tensors matches a module's name: all of it, or after `re:` a regular expression from its start."""
    return re.match(target.removeprefix("re:"), name) is not None if target.startswith("re:") else name == target


def untied(config: Mapping[str, Any]) -> dict[str, Any]:
    """With a head of its own, wherever the configuration says that it has none."""
    changed = copy.deepcopy(dict(config))
    inner = changed.get("text_config")
    if isinstance(inner, dict) and "tie_word_embeddings" in inner:
        inner["tie_word_embeddings"] = False
    changed["tie_word_embeddings"] = False
    return changed
