"""The command that serves a target with this variant as its drafter, in vLLM's own terms."""

import json
from collections.abc import Mapping
from typing import Any

from draftmill.formats import FORMATS
from draftmill.plans import Family, Plan
from draftmill_worker.checkpoint.drafter import Drafter

# Placeholders the reader replaces: target and drafter are pinned each by its own revision.
TARGET, TARGET_REVISION = "TARGET", "TARGET_REVISION"
DRAFTER, DRAFTER_REVISION = "DRAFTER", "DRAFTER_REVISION"

DEFAULT_TOKENS = 3
_TOKEN_KEYS = ("num_speculative_tokens", "num_lookahead_tokens", "speculative_tokens")


def speculative_config(drafter: Drafter, plan: Plan) -> dict[str, Any]:
    """`--speculative-config`. The quantization is said outright: older engines copy the target's."""
    if plan.family is Family.MTP:
        # The target's own directory, in its own quantization.
        return {"method": plan.family.value, "num_speculative_tokens": speculative_tokens(drafter)}
    config: dict[str, Any] = {
        "method": plan.family.value,
        "model": DRAFTER,
        "revision": DRAFTER_REVISION,
        "quantization": FORMATS[plan.format].quant_method,
        "num_speculative_tokens": speculative_tokens(drafter),
    }
    if plan.family is Family.EAGLE3 and any("mask_hidden" in tensor.name for tensor in plan.tensors):
        config["parallel_drafting"] = True
    return config


def serve_command(drafter: Drafter, plan: Plan) -> str:
    """Three shell lines. The dtype is pinned: float16 overflows in a drafter's feature fusion."""
    dtype = "float16" if plan.dtype == "float16" else "bfloat16"
    return (
        f"vllm serve {TARGET} --revision {TARGET_REVISION} \\\n"
        f"  --dtype {dtype} \\\n"
        f"  --speculative-config '{json.dumps(speculative_config(drafter, plan))}'"
    )


def speculative_tokens(drafter: Drafter) -> int:
    """Draft tokens per step: what the config says, capped by the block a drafter was trained on.

    An MTP block drafts a token with each of its layers; more only by running them again. DFlash drafts its block less
    the anchor, DSpark exactly its block where it samples from the anchor, one less where it does not. vLLM takes the
    first for DSpark unless told otherwise, the second for speculators' dialect.
    """
    if drafter.family is Family.MTP:
        return drafter.num_layers
    asked = _configured(drafter.config)
    if drafter.block_size is None:
        return asked or DEFAULT_TOKENS
    within = max(drafter.block_size - 1, 1)
    if drafter.family is Family.DSPARK:
        default = "speculators_model_type" not in drafter.config
        return drafter.block_size if drafter.config.get("sample_from_anchor", default) is True else within
    if drafter.family is Family.DFLASH:
        return min(asked, within) if asked else within
    return asked or DEFAULT_TOKENS


def _configured(config: Mapping[str, Any]) -> int | None:
    """The number in the config, at the top, in a family's section or in speculators' proposal."""
    speculators = config.get("speculators_config")
    proposals = speculators.get("proposal_methods") if isinstance(speculators, Mapping) else None
    sections = [config, config.get("eagle_config"), config.get("dflash_config"), speculators]
    sections += proposals if isinstance(proposals, list) else []
    values = [section.get(key) for section in sections if isinstance(section, Mapping) for key in _TOKEN_KEYS]
    return next((value for value in values if type(value) is int and 0 < value <= 1024), None)
