"""Which modules stay as they are, in the form that a format's reader understands.

ModelOpt's readers take substrings and shell patterns: see `ignore`. compressed-tensors' take whole names, and regular
expressions after `re:`, which vLLM 0.32 (quantization/utils/config_utils.py, `is_equal_or_regex_match`) anchors at the
start alone. There a fused layer is left out by its own name, or by those of all its parts where the class tells them.
"""

import re
from collections.abc import Set as AbstractSet

from draftmill.formats import FORMATS, Format
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.drafter import Drafter, Module
from draftmill_worker.quantize.ignore import ignore_list, runtime_names, target_depths, written_names

COMPRESSED_TENSORS = "compressed-tensors"
_EXPRESSION = "re:"


def exclusions(format: Format, drafter: Drafter, quantized: AbstractSet[str]) -> tuple[str, ...]:
    """`ignore` for all modules of the drafter but those named in `quantized` (by `Module.name`).

    Raises `target-depth-unknown` where no list fits every depth of the target, and `family-not-quantizable` for a
    drafter inside its target's checkpoint, whose reader would take the target's modules too.
    """
    if FORMATS[format].quant_method != COMPRESSED_TENSORS:
        return ignore_list(drafter, quantized)
    if drafter.target is not None:
        message = f"{format} would be read for the target too: use one of ModelOpt's formats"
        raise ProblemError("family-not-quantizable", message, [Offender(where=drafter.engine_class, message=message)])
    return _whole_names(drafter, quantized)


def matches(pattern: str, name: str) -> bool:
    """Whether vLLM's reader of compressed-tensors leaves `name` unquantized because of `pattern`."""
    if pattern.startswith(_EXPRESSION):
        return re.match(pattern.removeprefix(_EXPRESSION), name) is not None
    return pattern == name


def _whole_names(drafter: Drafter, quantized: AbstractSet[str]) -> tuple[str, ...]:
    kept = [module for module in drafter.modules if module.name not in quantized]
    depths = target_depths(drafter)
    built = [
        name
        for module in drafter.modules
        if module.name in quantized
        for depth in depths
        for name in runtime_names(drafter, module, depth)
    ]
    patterns = dict.fromkeys(
        pattern
        for module in kept
        for pattern in map(_anchored, written_names(drafter, module))
        if not any(matches(pattern, name) for name in built)
    )
    _check_complete(drafter, kept, tuple(patterns), depths)
    return tuple(patterns)


def _anchored(name: str) -> str:
    """A name in which `*` stands for a layer's unknown number, as an expression; others as they are."""
    if "*" not in name:
        return name
    return _EXPRESSION + r"[0-9]+".join(re.escape(part) for part in name.split("*")) + "$"


def _check_complete(drafter: Drafter, kept: list[Module], patterns: tuple[str, ...], depths: range) -> None:
    names = {
        module.name: {name for depth in depths for name in runtime_names(drafter, module, depth)} for module in kept
    }
    missed = [
        module
        for module, asked in names.items()
        if any(not any(matches(pattern, name) for pattern in patterns) for name in asked)
    ]
    if missed:
        message = "kept in one layer, quantized in another: exclude it in all layers, or in none"
        detail = "the configuration does not say how many layers the target has, by which the engine numbers these"
        raise ProblemError("target-depth-unknown", detail, [Offender(where=name, message=message) for name in missed])
