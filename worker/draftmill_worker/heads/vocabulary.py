"""Draft vocabularies: what is counted, what is chosen, and how much of held-out text a choice covers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from draftmill.heads import Coverage
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.config import MAX_INDEX_BYTES, decode, load_object
from draftmill_worker.heads.rows import HELD_OUT, Rows

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH = 1024
"""Texts that are tokenized together, over all cores."""
TABLE = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Sizes of the coverage table, in parts of the one chosen."""
LISTED = 100


@dataclass(frozen=True)
class Counts:
    seen: Tensor
    """int64 [vocabulary]: how often each token is in nine tenths of the texts; below zero if it cannot be drafted."""
    held: Tensor
    """The same of the tenth that is held out."""


def tokenizer_of(folder: Path) -> "Tokenizer":
    """ProblemError("head-refused") without tokenizer.json."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ProblemError(
            "head-refused", "counting text needs tokenizer.json", [Offender(where=path.name, message="missing")]
        )
    return Tokenizer.from_file(str(path))


def count_texts(texts: Iterable[str], tokenizer: "Tokenizer", vocab: int) -> Counts:
    """Texts as they come, a batch at a time: memory follows the batch. ProblemError("prompts-invalid") without any."""
    sums = torch.zeros(2, vocab, dtype=torch.int64)
    number = 0
    for batch in _batches(texts):
        parts: tuple[list[int], list[int]] = ([], [])
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            parts[number % HELD_OUT == HELD_OUT - 1].extend(encoding.ids)
            number += 1
        for place, ids in enumerate(parts):
            sums[place] += _bincount(torch.tensor(ids, dtype=torch.int64), vocab)
    return _counts(sums)


def count_rows(rows: Rows, vocab: int) -> Counts:
    """The tokens of a capture."""
    calibration, held = rows.split()
    return _counts(torch.stack([_bincount(rows.tokens[part], vocab) for part in (calibration, held)]))


def _counts(sums: Tensor) -> Counts:
    if not bool(sums[0].any()):
        raise ProblemError("prompts-invalid", "there are no tokens to count")
    return Counts(sums[0], sums[1])


def _bincount(ids: Tensor, vocab: int) -> Tensor:
    if len(ids) and int(ids.max()) >= vocab:
        message = f"the tokenizer gives id {int(ids.max())}; the head has {vocab} rows"
        raise ProblemError("draft-vocab-invalid", message, [Offender(where="tokenizer.json", message=message)])
    return torch.bincount(ids, minlength=vocab)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(texts)
    while batch := list(islice(iterator, BATCH)):
        yield batch


def special_ids(folder: Path, vocab: int) -> Tensor:
    """Tokens without which generation cannot end or turn: special ones of the tokenizer, and what the configurations
    call the end. int64, sorted, inside the vocabulary."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            found |= _ends(load_object((folder / name).read_bytes(), name))
    path = folder / "tokenizer.json"
    if path.is_file():
        added = load_object(path.read_bytes(), path.name, MAX_INDEX_BYTES).get("added_tokens")
        items = [item for item in added if isinstance(item, dict)] if isinstance(added, list) else []
        found |= {item["id"] for item in items if item.get("special") is True and type(item.get("id")) is int}
    return torch.tensor(sorted(token for token in found if 0 <= token < vocab), dtype=torch.int64)


def _ends(config: dict[str, Any]) -> set[int]:
    inner = config.get("text_config")
    found: set[int] = set()
    for section in (config, inner if isinstance(inner, dict) else {}):
        for key in ("eos_token_id", "bos_token_id"):
            value = section.get(key)
            found |= {token for token in (value if isinstance(value, list) else [value]) if type(token) is int}
    return found


def choose(counts: Counts, size: int, special: Tensor) -> Tensor:
    """The special tokens and the most frequent others, the lower id first among equals: int64 [size], sorted.

    ProblemError("draft-vocab-invalid") for a size that the special tokens or the vocabulary do not fit.
    """
    most = int((counts.seen >= 0).sum())
    if not len(special) <= size <= most:
        message = f"must be {len(special)}, the special tokens alone, to {most}, all that can be drafted"
        offender = Offender(where="draft_vocab.size", message=message, value=size)
        raise ProblemError("draft-vocab-invalid", f"a draft vocabulary of {size}: {message}", [offender])
    order = counts.seen.clone()
    order[special] = torch.iinfo(torch.int64).max
    return torch.sort(order, descending=True, stable=True).indices[:size].sort().values


def coverage(counts: Counts, size: int, special: Tensor) -> tuple[Coverage, ...]:
    """By size around the one chosen."""
    most = int((counts.seen >= 0).sum())
    sizes = sorted({min(max(int(size * part), len(special), 1), most) for part in TABLE} | {size, most})
    return tuple(Coverage(size=one, covered=covered(counts, choose(counts, one, special))) for one in sizes)


def covered(counts: Counts, ids: Tensor) -> float:
    """Share of the held-out tokens that `ids` has; 0 where nothing was held out."""
    return float(counts.held[ids].sum()) / max(int(counts.held.sum()), 1)


def given_ids(path: Path, vocab: int) -> Tensor:
    """A JSON list of ids, sorted. ProblemError("draft-vocab-invalid") for ids twice or outside [0, vocab)."""
    with path.open("rb") as file:
        value = decode(file.read(MAX_INDEX_BYTES + 1), path.name, "draft-vocab-invalid", MAX_INDEX_BYTES, 4)
    if not isinstance(value, list) or not value or not all(type(item) is int for item in value):
        raise ProblemError("draft-vocab-invalid", f"{path.name} is no list of token ids")
    check_ids(value, vocab)
    return torch.tensor(sorted(value), dtype=torch.int64)


def check_ids(ids: list[int], vocab: int) -> None:
    """Whatever their order. ProblemError("draft-vocab-invalid") with every id that is wrong."""
    outside = [token for token in ids if not 0 <= token < vocab]
    offenders = [Offender(where="ids", message=f"outside [0, {vocab})", value=token) for token in outside]
    seen: set[int] = set()
    for token in ids:
        if token in seen:
            offenders.append(Offender(where="ids", message="given twice", value=token))
        seen.add(token)
    if offenders:
        raise ProblemError("draft-vocab-invalid", f"{len(offenders)} ids cannot be used", offenders[:LISTED])
