"""What a checkpoint must have for an MTP block to draft from a vocabulary of its own.

Wrong parts change no output: drafts are verified, and the acceptance length alone falls. So whatever is not as it must
be ends the loading, all of it in one error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

HEAD, IDS = "mtp.draft_lm_head", "mtp.draft_vocab_ids"
"""A module and a tensor of the checkpoint."""
SIZE_KEY, IDS_KEY = "mtp_draft_vocab_size", "mtp_draft_vocab_ids"
"""Keys of its config.json."""
WEIGHT, SHAPE = "weight", "weight_shape"
"""Of a head: its plain rows, and what a packed one says of them. All but the latter have a row per token."""
SHOWN = 20
"""Complaints that an error repeats."""


class DraftVocabularyError(ValueError):
    """A draft vocabulary that is not whole, or not this checkpoint's. Nothing is served."""

    def __init__(self, wrong: Sequence[str]) -> None:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        super().__init__(f"draft vocabulary: {'; '.join(wrong[:SHOWN])}{more}")


@dataclass(frozen=True)
class Said:
    """A draft vocabulary as config.json has it."""

    size: int
    ids: tuple[int, ...] | None


def said(config: Any, vocab: int) -> Said | None:
    """Of a model configuration; None where it tells of none. DraftVocabularyError for half of it."""
    size, ids = getattr(config, SIZE_KEY, None), getattr(config, IDS_KEY, None)
    if size is None and ids is None:
        return None
    if type(size) is not int or not 0 < size <= vocab:
        raise DraftVocabularyError([f"config.json: {SIZE_KEY} must be in [1, {vocab}], and is {size!r}"])
    if ids is None:
        return Said(size, None)
    if not isinstance(ids, list) or len(ids) != size:
        raise DraftVocabularyError([f"config.json: {IDS_KEY} must be a list of {size}"])
    return Said(size, tuple(ids))


@dataclass
class Parts:
    """Tensors on their way into a model: those of the draft vocabulary are kept, the others go on."""

    tied: bool
    """The target's head is its embedding."""
    draft: dict[str, Tensor] = field(default_factory=dict)
    """By parameter of the draft head."""
    ids: Tensor | None = None
    head: dict[str, Tensor] = field(default_factory=dict)
    """The target's, by parameter: what the draft head's rows are rows of."""

    def passing(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            module, _, parameter = name.rpartition(".")
            if module == HEAD:
                self.draft[parameter] = tensor
            elif name == IDS:
                self.ids = tensor
            else:
                if self._is_head(module):
                    self.head[parameter] = tensor
                yield name, tensor

    def _is_head(self, module: str) -> bool:
        last = module.rpartition(".")[2]
        return not module.startswith("mtp.") and last in {"lm_head", *(["embed_tokens"] if self.tied else [])}


def refusing(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """All of them, where config.json tells of no draft vocabulary: DraftVocabularyError for a part of one."""
    for name, tensor in weights:
        if name == IDS or name.rpartition(".")[0] == HEAD:
            raise DraftVocabularyError([f"{name} is there, and config.json has no {SIZE_KEY}"])
        yield name, tensor


Wanted = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape but for its rows, and dtype, of each parameter that the draft head was built with."""


def check(parts: Parts, wanted: Wanted, claim: Said, vocab: int) -> Tensor:
    """The ids, int64. DraftVocabularyError with everything that is wrong."""
    wrong = [*_missing(parts, wanted), *_misshapen(parts, wanted, claim.size)]
    wrong += list(_bad_ids(parts.ids, claim, vocab))
    if parts.ids is None or wrong:
        raise DraftVocabularyError(wrong)
    if wrong := list(_other_rows(parts, parts.ids)):
        raise DraftVocabularyError(wrong)
    return parts.ids


def _missing(parts: Parts, wanted: Wanted) -> Iterator[str]:
    if not parts.head:
        # vLLM unties a checkpoint with any name that ends as a head's, and would serve what memory held.
        yield f"lm_head is not stored, and vLLM has taken {HEAD}.weight for it"
    if parts.ids is None:
        yield f"{IDS} is missing"
    for name in sorted(wanted.keys() - parts.draft.keys()):
        yield f"{HEAD}.{name} is missing"
    for name in sorted(parts.draft.keys() - wanted.keys()):
        yield f"{HEAD}.{name} is not what this checkpoint's quantization makes of a head"


def _misshapen(parts: Parts, wanted: Wanted, size: int) -> Iterator[str]:
    for name, tensor in sorted(parts.draft.items()):
        if name not in wanted:
            continue
        inner, dtype = wanted[name]
        shape = (2,) if name == SHAPE else (size, *inner)
        if tuple(tensor.shape) != shape or tensor.is_floating_point() != dtype.is_floating_point:
            yield f"{HEAD}.{name} must be {list(shape)}, like {dtype}, and is {list(tensor.shape)} of {tensor.dtype}"
        elif name == SHAPE and int(tensor[0]) != size:
            yield f"{HEAD}.{name} must say {size} rows, and says {int(tensor[0])}"


def _bad_ids(ids: Tensor | None, claim: Said, vocab: int) -> Iterator[str]:
    if ids is None:
        return
    if ids.dtype != torch.int64 or tuple(ids.shape) != (claim.size,):
        yield f"{IDS} must be {[claim.size]} of torch.int64, and is {list(ids.shape)} of {ids.dtype}"
        return
    if bool((ids.diff() <= 0).any()):
        yield f"{IDS} must be sorted, each once"
    if bool(((ids < 0) | (ids >= vocab)).any()):
        yield f"{IDS} must lie in [0, {vocab})"
    if claim.ids is not None and tuple(ids.tolist()) != claim.ids:
        yield f"{IDS} differs from config.json's {IDS_KEY}"


def _other_rows(parts: Parts, ids: Tensor) -> Iterator[str]:
    """Where the target's head is stored as the draft head is, they must be the same rows: ids cannot be seen wrong
    otherwise. A draft head that is stored in another way is taken as it is."""
    for name, tensor in sorted(parts.draft.items()):
        whole = parts.head.get(name)
        if name == SHAPE or whole is None or whole.dtype != tensor.dtype:
            continue
        if whole.shape[1:] != tensor.shape[1:] or int(ids.max()) >= whole.shape[0]:
            yield f"{HEAD}.{name} is {list(tensor.shape)}, beside a head of {list(whole.shape)}"
        elif not torch.equal(whole[ids], tensor):
            other = ids[(whole[ids] != tensor).reshape(len(ids), -1).any(1)].tolist()
            yield f"{HEAD}.{name} does not have the head's rows of its ids: {len(other)} differ, from {other[0]} on"
