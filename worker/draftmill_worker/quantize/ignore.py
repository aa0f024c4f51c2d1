"""Which modules the engine must build unquantized, named so that it hits those and no others.

vLLM 0.32 (quantization/modelopt.py, `is_layer_excluded`) excludes a module when a pattern is its name, is a substring
of its name, or matches it as a shell pattern. It asks with run-time names: fused, and with draft layers counted on
from the target's last one. A name that matches nothing raises nothing; the drafter then accepts nothing.
"""

import re
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from typing import NamedTuple

from draftmill.plans import Fate, Plan
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.drafter import Drafter, Module

ASSUMED_TARGET_LAYERS = 32
_LAYER = "{layer}"
# As vLLM's qwen3_dflash.py has it: bare or wildcard `layers.N`, never `model.layers.N`.
_BARE_LAYER = re.compile(r"(?<![A-Za-z0-9_.])layers\.(\d+)")


class RuntimeModule(NamedTuple):
    name: str
    """What the engine asks its quantization config for."""
    members: tuple[str, ...]
    """Checkpoint modules fused into it; none where the checkpoint stores none."""
    quantized: bool


def runtime_modules(drafter: Drafter, plan: Plan, target_layers: int | None = None) -> list[RuntimeModule]:
    """Every module with a weight matrix that the engine builds for the drafter, as the plan leaves it.

    `target_layers` is the target's number of decoder layers: the drafter's own record by default, or a stand-in.
    """
    quantized = {tensor.name.removesuffix(".weight") for tensor in plan.tensors if tensor.fate is Fate.QUANTIZED}
    quantized |= {*plan.merged}
    depth = target_layers or drafter.target_num_layers or max(ASSUMED_TARGET_LAYERS, drafter.min_target_layers)
    return [
        RuntimeModule(name, module.members, bool(quantized.intersection(module.members)))
        for module in drafter.modules
        for name in runtime_names(drafter, module, depth)
    ]


def runtime_names(drafter: Drafter, module: Module, target_layers: int) -> list[str]:
    number = (module.layer or 0) + (target_layers if drafter.offset_layers else 0)
    return [name.replace(_LAYER, str(number)) for name in module.runtime]


def excludes(pattern: str, name: str) -> bool:
    """Whether vLLM leaves the run-time module `name` unquantized because of `pattern`."""
    return pattern in name or fnmatchcase(name, pattern)


def ignore_list(drafter: Drafter, quantized: AbstractSet[str]) -> tuple[str, ...]:
    """Patterns for all modules of the drafter but those named in `quantized` (by `Module.name`).

    Checkpoint names and run-time names, shards and fused, each per layer. Where the target's layer count is not known
    a layer's run-time number is `*`; when that would hit a quantized layer too, raises `target-depth-unknown`.
    """
    kept = [module for module in drafter.modules if module.name not in quantized]
    built = [module for module in drafter.modules if module.name in quantized]
    depths = target_depths(drafter)
    forbidden = _Names(name for module in built for depth in depths for name in runtime_names(drafter, module, depth))
    patterns = _target_patterns(drafter, forbidden)
    for module in kept:
        patterns |= dict.fromkeys(_safe(written_names(drafter, module), forbidden))
    if drafter.existing is not None:
        # They may exclude what this build knows nothing of.
        stored = _Names(name for module in built for name in written_names(drafter, module))
        before = (old for old in drafter.existing.ignore if not forbidden.hit_by(old) and not stored.hit_by(old))
        patterns |= dict.fromkeys(before)
    _check_complete(drafter, kept, tuple(patterns), depths)
    return tuple(patterns)


def _target_patterns(drafter: Drafter, forbidden: "_Names") -> dict[str, None]:
    """Those of a target in the same checkpoint, which is served by the same list."""
    patterns = drafter.target.patterns if drafter.target else ()
    if patterns and drafter.existing is not None:
        message = "a target that is quantized itself is not merged with its MTP block"
        raise ProblemError("family-not-quantizable", message, [Offender(where=drafter.engine_class, message=message)])
    hitting = [pattern for pattern in patterns if forbidden.hit_by(pattern)]
    if hitting:
        message = "names modules of the target and of its drafter alike"
        offenders = [Offender(where=pattern, message=message) for pattern in hitting]
        raise ProblemError("family-not-quantizable", "the engine cannot tell target and drafter apart", offenders)
    return dict.fromkeys(patterns)


class _Names:
    """Run-time names to test patterns against, in one scan for a plain pattern."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(set(names))
        self._joined = "\n".join(self._names)

    def hit_by(self, pattern: str) -> bool:
        """As `excludes` has it, for any of the names."""
        if pattern in self._joined:
            return True
        return any(sign in pattern for sign in "*?[") and any(fnmatchcase(name, pattern) for name in self._names)


def target_depths(drafter: Drafter) -> range:
    """Layer counts of the target to allow for. Beyond the drafter's own depth numbers no longer coincide."""
    if not drafter.offset_layers:
        return range(1, 2)  # it plays no part
    if drafter.target_num_layers is not None:
        return range(drafter.target_num_layers, drafter.target_num_layers + 1)
    least = drafter.min_target_layers
    return range(least, max(least, drafter.num_layers) + 2)


def written_names(drafter: Drafter, module: Module) -> Iterator[str]:
    """Names of a module and of its parts, the checkpoint's and the engine's; `*` for a layer's unknown number."""
    yield module.name
    # Experts have the name of the whole in theirs, which excludes them as it is.
    members = [member for member in module.members if not member.startswith(f"{module.name}.")]
    yield from members
    shards = [member.rpartition(".")[2] for member in members] if module.fused else []
    for name in module.runtime:
        stem = name.rpartition(".")[0]
        for path in (name, *(f"{stem}.{shard}" for shard in shards)):
            yield path.replace(_LAYER, _runtime_number(drafter, module))


def _runtime_number(drafter: Drafter, module: Module) -> str:
    if not drafter.offset_layers:
        return str(module.layer or 0)
    if drafter.target_num_layers is None:
        return "*"
    return str((module.layer or 0) + drafter.target_num_layers)


def _safe(patterns: Iterable[str], forbidden: _Names) -> Iterator[str]:
    """The patterns that hit nothing forbidden; a plain name that does so as a substring, as a shell pattern instead."""
    for pattern in patterns:
        # Brackets keep a pattern from being anyone's substring.
        whole = f"[{pattern[0]}]{pattern[1:]}"
        usable = next((form for form in (pattern, whole) if not forbidden.hit_by(form)), None)
        if usable is not None:
            yield usable


def _check_complete(drafter: Drafter, kept: list[Module], patterns: tuple[str, ...], depths: range) -> None:
    missed: dict[str, None] = {}
    for depth in depths:
        read = frozenset(_as_engine_reads(drafter, patterns, depth))
        for module in kept:
            for name in runtime_names(drafter, module, depth):
                if name not in read and not any(excludes(pattern, name) for pattern in read):
                    missed[module.name] = None
    if missed:
        message = "kept in one layer, quantized in another: exclude it in all layers, or in none"
        detail = "the configuration does not say how many layers the target has, by which the engine numbers these"
        raise ProblemError("target-depth-unknown", detail, [Offender(where=name, message=message) for name in missed])


def _as_engine_reads(drafter: Drafter, patterns: tuple[str, ...], depth: int) -> tuple[str, ...]:
    if not drafter.engine_offsets_ignore:
        return patterns
    offset = [_BARE_LAYER.sub(lambda match: f"layers.{int(match[1]) + depth}", pattern) for pattern in patterns]
    return (*patterns, *offset)
