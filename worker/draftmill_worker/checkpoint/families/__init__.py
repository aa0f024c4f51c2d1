"""Recognises a drafter's family by its tensors and its configuration together.

Names in registries lie: `DSparkDraftModel` is one family's class in one engine and another's in the next. Tensors say
what a checkpoint is; the configuration must not contradict them.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from draftmill.plans import Family
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.checkpoint.drafter import Drafter, Module, Target
from draftmill_worker.checkpoint.families import dflash, draft_model, dspark, eagle, eagle3, medusa, mtp
from draftmill_worker.checkpoint.families.deepseek_dspark import refuse_deepseek_dspark
from draftmill_worker.checkpoint.families.gemma4_assistant import refuse_gemma4_assistant
from draftmill_worker.checkpoint.families.quantized import refuse_quantized
from draftmill_worker.checkpoint.families.reading import Reading
from draftmill_worker.checkpoint.families.settings import Settings, flatten
from draftmill_worker.checkpoint.findings import Findings

__all__ = ["Drafter", "Module", "detect"]


# A tensor takes up to about 1 KiB of plan.json, which is read up to 32 MiB. Drafters have a few thousand at most; a
# benchmark's target, which may have far more, is not planned.
MAX_TENSORS = 16_384


@dataclass(frozen=True)
class _Layout:
    """How one family shows itself."""

    family: Family
    tensors: tuple[str, ...]
    """Patterns that some tensor's name must match, each of them, from its first character."""
    named: str
    """Pattern of architectures and model types that claim the family."""
    keys: tuple[str, ...]
    """Configuration keys that claim it."""
    read: Callable[[Reading], Drafter]


# Order matters: DSpark has all of DFlash's tensors, and DFlash, EAGLE3 and EAGLE-1 each have those of the next.
_LAYOUTS = (
    _Layout(Family.DSPARK, (r"markov_head\.",), r"dspark", ("markov_rank",), dspark.read),
    _Layout(Family.MEDUSA, (medusa.BLOCK.pattern + "$",), r"medusa", ("medusa_num_heads",), medusa.read),
    _Layout(
        Family.EAGLE3,
        (r"midlayer\.|layers\.\d+\.hidden_norm\.weight",),
        r"eagle-?3|peagle",
        ("eagle_aux_hidden_state_layer_ids", "eagle_config", "draft_vocab_size"),
        eagle3.read,
    ),
    _Layout(
        Family.DFLASH,
        (r"hidden_norm\.weight", r"fc\.weight", r"layers\.\d+\."),
        r"dflash",
        ("dflash_config", "target_layer_ids"),
        dflash.read,
    ),
    _Layout(
        Family.EAGLE,
        (r"fc\.weight", r"layers\.\d+\."),
        r"^eagle($|model$|(?!-?3).*ForCausalLM$)|^LlamaForCausalLM$",
        (),
        eagle.read,
    ),
    _Layout(
        Family.DRAFT_MODEL,
        (r"model\.embed_tokens\.weight", r"model\.layers\.\d+\."),
        "|".join(f"^{name}$" for name in draft_model.ARCHITECTURES),
        (),
        draft_model.read,
    ),
)
# Other tensors under the names of a family above; they come with their own layouts.
_OTHER_LAYOUTS = re.compile(r"K3DSpark|DeepseekV[234]|Laguna|LiLiCorr|MuseGlimmer")


def _check_count(checkpoint: Checkpoint, target: Target | None = None) -> None:
    """Files of a target that hold no tensor of its drafter are planned whole."""
    written = None if target is None else target.written_files(checkpoint.tensors)
    count = sum(written is None or tensor.file in written for tensor in checkpoint.tensors.values())
    if count > MAX_TENSORS:
        message = f"the weight files hold {count} tensors; at most {MAX_TENSORS} are planned"
        if target is not None:
            message = f"the files that hold the MTP block {message.removeprefix('the weight files ')}"
        raise ProblemError("too-many-tensors", message, [Offender(where="tensors", message=message, value=count)])


def detect(checkpoint: Checkpoint) -> Drafter:
    """The drafter in the checkpoint.

    Raises `too-many-tensors`, `already-quantized`, `unknown-family`, `malformed-config`, `head-ambiguous`,
    `tied-head-mismatch`, `target-layers-missing`, `shape-mismatch`, `missing-tensors`, `promised-layers-missing` or
    `family-not-quantizable`, with every offender.
    """
    refuse_deepseek_dspark(checkpoint)
    refuse_gemma4_assistant(checkpoint)
    embedded = mtp.dialect_of(checkpoint.config)
    if embedded is None:
        _check_count(checkpoint)
    refuse_quantized(checkpoint)
    findings = Findings()
    settings, speculators = flatten(checkpoint.config, findings)
    findings.raise_any()
    reading = Reading(checkpoint, settings, speculators, findings)
    if embedded is not None:
        drafter = mtp.read(reading, embedded)
        _check_count(checkpoint, drafter.target)
    else:
        drafter = _recognise(checkpoint.tensors, settings).read(reading)
    findings.raise_any()
    return drafter


def _recognise(tensors: Iterable[str], settings: Settings) -> _Layout:
    names = list(tensors)
    layout = next((layout for layout in _LAYOUTS if _matches(layout, names)), None)
    claims = _claims(settings)
    if layout is None:
        raise _unknown("the tensors fit no family", names, settings)
    named = settings.texts("architectures")
    if any(_OTHER_LAYOUTS.search(name) for name in named):
        raise _unknown(f"the layout of {', '.join(named)} is not read by this build", names, settings)
    if layout.family not in claims:
        told = ", ".join(sorted(claims)) or "no family"
        raise _unknown(f"the tensors are those of {layout.family}; the configuration claims {told}", names, settings)
    return layout


def _matches(layout: _Layout, names: list[str]) -> bool:
    patterns = [re.compile(pattern) for pattern in layout.tensors]
    return all(any(pattern.match(name) for name in names) for pattern in patterns)


def _claims(settings: Settings) -> set[Family]:
    named = (*settings.texts("architectures"), settings.text("model_type"), settings.text("speculators_model_type"))
    return {
        layout.family
        for layout in _LAYOUTS
        if any(re.search(layout.named, name, re.IGNORECASE) for name in named)
        or any(settings.values.get(key) is not None for key in layout.keys)
    }


def _unknown(message: str, names: list[str], settings: Settings) -> ProblemError:
    architectures = list(settings.texts("architectures"))
    offenders = [
        Offender(where="config.json: architectures", message=message, value=list(architectures)),
        Offender(where="tensors", message="the first names", value=list(names[:8])),
    ]
    return ProblemError("unknown-family", message, offenders)
