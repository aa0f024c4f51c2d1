"""Which names of a target's checkpoint are its MTP block's, and patterns for all the others."""

import re
from collections.abc import Iterable, Iterator, Mapping

from draftmill_worker.checkpoint.families.mtp_dialects import PREFIX, Dialect
from draftmill_worker.checkpoint.headers import TensorInfo

_PAST = re.compile(r"model\.layers\.(\d{1,6})\.")
_UNDER = re.compile(r"(?:model\.)?mtp(?:\.layers|_layers)\.(\d{1,6})\.")
# A stack of numbered blocks, or a tower of another modality, is named as a whole: targets have thousands of modules.
_NUMBERED = re.compile(r"(.*?\.\d{1,6})\.")
_TOWER = re.compile(r"((?:model\.)?(?:visual|vision_tower|vision_model|audio_tower))\.")


def layers_stored(names: Iterable[str], dialect: Dialect, target_layers: int) -> set[int]:
    """Numbers of the block's layers as they are stored."""
    pattern, least = (_PAST, target_layers) if dialect.past_last else (_UNDER, 0)
    found = {int(match[1]) for match in map(pattern.match, names) if match}
    return {number for number in found if number >= least}


def block_tensors(names: Iterable[str], dialect: Dialect, target_layers: int) -> Iterator[str]:
    for name in names:
        if dialect.past_last:
            match = _PAST.match(name)
            if match is not None and int(match[1]) >= target_layers:
                yield name
        elif name.startswith(PREFIX):
            yield name


def target_patterns(
    tensors: Mapping[str, TensorInfo], block: frozenset[str], renames: Mapping[str, str]
) -> tuple[str, ...]:
    """Patterns for the target's modules with a weight matrix, in checkpoint order, each by the engine's name too."""
    patterns: dict[str, None] = {}
    for name, tensor in tensors.items():
        if name in block or len(tensor.shape) < 2:
            continue
        grouped = _TOWER.match(name) or _NUMBERED.match(name)
        pattern = f"{grouped[1]}.*" if grouped else name.removesuffix(".weight")
        patterns |= dict.fromkeys((pattern, renamed(f"{pattern}.", renames).removesuffix(".")))
    return tuple(patterns)


def renamed(name: str, renames: Mapping[str, str]) -> str:
    """As vLLM's WeightsMapper does it: the first prefix that fits is replaced."""
    for prefix, other in renames.items():
        if name.startswith(prefix):
            return other + name.removeprefix(prefix)
    return name
