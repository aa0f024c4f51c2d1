"""Configurations: what an engine is told of the rewritten modules, and that it is told nothing else."""

from typing import Any

from draftmill_worker.checkpoint.checkpoint import CONFIG
from draftmill_worker.checkpoint.config import load_object
from draftmill_worker.heads import config
from draftmill_worker.heads.draft_head import IDS_KEY, SIZE_KEY
from draftmill_worker.heads.verify.registry import check
from draftmill_worker.heads.verify.view import View
from draftmill_worker.quantize.formats.pack_quantized import GROUP
from draftmill_worker.verify.registry import Result, skipped

FREE = {config.SECTION, "tie_word_embeddings", "text_config", "draft_vocab_size", SIZE_KEY, IDS_KEY}
"""Keys of config.json that a rewritten head may change; of text_config, tie_word_embeddings alone."""


@check("head-bits", "the first config group that matches a rewritten module says the bits that it is stored in")
def bits(view: View) -> Result:
    result = Result(evidence={})
    if not view.plan.groups:
        return skipped("no module was rewritten")
    documents = {CONFIG: view.after.config.get(config.SECTION)}
    sidecar = view.variant / config.SIDECAR
    if sidecar.is_file():
        documents[config.SIDECAR] = load_object(sidecar.read_bytes(), sidecar.name)
    for name, section in documents.items():
        _check_section(view, name, section if isinstance(section, dict) else {}, result)
    return result


def _check_section(view: View, document: str, section: dict[str, Any], result: Result) -> None:
    if section.get("quant_method") != config.METHOD:
        result.blame(f"{document}: quant_method", f"{config.METHOD} expected", section.get("quant_method"))
    groups = section.get("config_groups")
    ignored = [entry for entry in section.get("ignore") or () if isinstance(entry, str)]
    for module, info, columns, planned in view.packed():
        stored = info.shape[1] * 32 // max(columns, 1)
        weights = _first(groups if isinstance(groups, dict) else {}, module)
        said = weights.get("num_bits"), weights.get("group_size"), weights.get("symmetric"), weights.get("strategy")
        result.evidence[module] = {"stored": stored, "said": said[0]}
        if said != (stored, GROUP, True, "group") or stored != planned:
            result.blame(f"{document}: {module}", f"{stored} bits are stored, {planned} planned", list(said))
        if any(config.matches(module, entry) for entry in ignored):
            result.blame(f"{document}: ignore", "covers a quantized module", module)


def _first(groups: dict[str, Any], module: str) -> dict[str, Any]:
    """The weights of the first group with a target that matches."""
    for group in groups.values():
        for target in group.get("targets") or ():
            # An embedding is met by its class's name in some models.
            by_class = target == "VocabParallelEmbedding" and module.endswith("embed_tokens")
            if by_class or config.matches(module, target):
                weights: dict[str, Any] = group.get("weights") or {}
                return weights
    return {}


@check("head-config", "config.json is the source's but for what a rewritten head changes")
def configuration(view: View) -> Result:
    before, after = view.before.config, view.after.config
    result = Result(evidence={"keys": len(after)})
    for key in sorted((before.keys() | after.keys()) - FREE):
        if before.get(key) != after.get(key):
            result.blame(f"{CONFIG}: {key}", "differs from the source")
    inner = [_without_tie(side.get("text_config")) for side in (before, after)]
    if inner[0] != inner[1]:
        result.blame(f"{CONFIG}: text_config", "differs from the source")
    own = any("lm_head." in name and not name.startswith("mtp.") for name in view.after.tensors)
    if view.plan.tied and (after.get("tie_word_embeddings") is not False or not own):
        result.blame(f"{CONFIG}: tie_word_embeddings", "must be false: the variant has a head of its own")
    return result


def _without_tie(section: Any) -> Any:
    if not isinstance(section, dict):
        return section
    return {key: value for key, value in section.items() if key != "tie_word_embeddings"}
