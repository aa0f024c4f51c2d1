"""Which tokens a draft vocabulary has, for the source that it is for."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from draftmill.benchmarks import PromptSet
from draftmill.heads import Coverage
from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.heads import texts, vocabulary
from draftmill_worker.heads.draft_head import has_mtp, read_native
from draftmill_worker.heads.rows import Rows
from draftmill_worker.heads.source import check_drafts, find_head

NEVER = -1
"""Count of a token that the drafter has no row for."""
Chosen = tuple[Tensor, tuple[Coverage, ...]]
"""Ids, int64 and sorted, and what vocabularies of several sizes cover."""


@dataclass(frozen=True)
class Subject:
    vocab: int
    """Tokens of the target."""
    special: Tensor
    rows: Tensor | None
    """Target ids that a native drafter has rows for; None where it has all."""
    target: Path
    """Folder of the tokenizer."""


def read_subject(source: Path, checkpoint: Checkpoint, target: Path) -> Subject:
    """ProblemError("head-refused"), ("head-source-missing")."""
    if has_mtp(checkpoint.tensors):
        check_drafts(checkpoint)
        vocab, rows = find_head(source, checkpoint).tensor.shape[0], None
    else:
        native = read_native(source, checkpoint)
        vocab, rows = native.vocab, native.old
    special = vocabulary.special_ids(target, vocab)
    if rows is not None:
        special = special[torch.isin(special, rows)]
    return Subject(vocab, special, rows, target)


def given(subject: Subject, path: Path) -> Tensor:
    """As they were given, sorted. ProblemError("draft-vocab-invalid")."""
    return vocabulary.given_ids(path, subject.vocab)


def from_rows(subject: Subject, rows: Rows, size: int) -> Chosen:
    return _choose(subject, vocabulary.count_rows(rows, subject.vocab), size)


def from_texts(subject: Subject, said: Iterable[str], size: int) -> Chosen:
    tokenizer = vocabulary.tokenizer_of(subject.target)
    return _choose(subject, vocabulary.count_texts(said, tokenizer, subject.vocab), size)


def said(asked: PromptSet, file: Path | None) -> Iterable[str]:
    """The texts of a corpus: a file's as they come, those of a shipped set at once."""
    if file is None or asked.categories or asked.limit is not None:
        return [texts.plain(prompt) for prompt in texts.load(asked, file)]
    return texts.lines(file)


def _choose(subject: Subject, counts: vocabulary.Counts, size: int) -> Chosen:
    if subject.rows is not None:
        seen = torch.full_like(counts.seen, NEVER)
        seen[subject.rows] = counts.seen[subject.rows]
        counts = replace(counts, seen=seen)
    ids = vocabulary.choose(counts, size, subject.special)
    return ids, vocabulary.coverage(counts, size, subject.special)
