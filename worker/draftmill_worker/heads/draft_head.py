"""A draft vocabulary in a variant directory: rows of its head, bit for bit, and which tokens they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftmill.plans import OutputTensor
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.checkpoint.headers import TensorInfo
from draftmill_worker.heads.rewrite import Stored, stored_in
from draftmill_worker.heads.source import find_head
from draftmill_worker.heads.tensors import raw, read_rows
from draftmill_worker.heads.vocabulary import check_ids
from draftmill_worker.quantize.formats.pack_quantized import PACKED, SCALE, SHAPE

MODULE = "mtp.draft_lm_head"
IDS = "mtp.draft_vocab_ids"
SIZE_KEY, IDS_KEY = "mtp_draft_vocab_size", "mtp_draft_vocab_ids"
KEYS = (SIZE_KEY, IDS_KEY)
COMMUNITY_IDS = "mtp_draft_vocab_ids.pt"
LM_HEAD, D2T, T2D = "lm_head.weight", "d2t", "t2d"
_TABLES = (LM_HEAD, "markov_head.markov_w2.weight")
"""Of native drafters: one row per token that can be drafted."""
ROWS = 1 << 13
"""Rows gathered together."""


Cut = tuple[list[Stored], dict[str, Any]]
"""Tensors to store, and keys of config.json."""


def slice_mtp(folder: Path, checkpoint: Checkpoint, ids: Tensor) -> Cut:
    """The draft head of a directory with an MTP block, and its ids.

    The head is the directory's own, as it is: packed rows are copied as they are packed. ProblemError
    ("draft-vocab-invalid"), ("head-source-missing").
    """
    head, tied = _parts(folder, checkpoint)
    check_ids(ids.tolist(), next(iter(head.values())).shape[0])
    stored = [_gathered(folder / info.file, info, f"{MODULE}.{part}", ids) for part, info in head.items()]
    if PACKED in head:
        shape = _weight_shape(folder, checkpoint, head[PACKED].name.removesuffix(PACKED))
        stored.append(_values(f"{MODULE}.{SHAPE}", torch.tensor([len(ids), shape[1]])))
    if tied:
        # vLLM unties a checkpoint with any tensor named like a head's, and would leave the real one uninitialised.
        stored.append(stored_in(folder / head["weight"].file, head["weight"], LM_HEAD))
    stored.append(_values(IDS, ids))
    return stored, {SIZE_KEY: len(ids), IDS_KEY: ids.tolist()}


def write_community(folder: Path, ids: Tensor) -> None:
    """The ids as the published patch reads them, beside the tensors that lie where it looks for them."""
    torch.save(ids, folder / COMMUNITY_IDS)


def _parts(folder: Path, checkpoint: Checkpoint) -> tuple[dict[str, TensorInfo], bool]:
    """Tensors of the head with one row per token, by suffix; whether they are the embedding's."""
    packed = [tensor for name, tensor in checkpoint.tensors.items() if _is_head(name, PACKED)]
    if packed:
        scale = checkpoint.tensors[packed[0].name.removesuffix(PACKED) + SCALE]
        return {PACKED: packed[0], SCALE: scale}, False
    found = find_head(folder, checkpoint)
    return {"weight": found.tensor}, found.tied


def _is_head(name: str, suffix: str) -> bool:
    return not name.startswith("mtp.") and (name == f"lm_head.{suffix}" or name.endswith(f".lm_head.{suffix}"))


def _weight_shape(folder: Path, checkpoint: Checkpoint, stem: str) -> list[int]:
    info = checkpoint.tensors[stem + SHAPE]
    shape: list[int] = read_rows(folder / info.file, info, 0, 2).tolist()
    return shape


@dataclass(frozen=True)
class Native:
    """A drafter of a family that knows draft vocabularies."""

    vocab: int
    """The target's."""
    tables: tuple[TensorInfo, ...]
    old: Tensor
    """Target id of each row that the drafter has now."""


def read_native(folder: Path, checkpoint: Checkpoint) -> Native:
    """ProblemError("head-refused") for a drafter that has no head of its own to cut."""
    tables = tuple(tensor for name, tensor in checkpoint.tensors.items() if name in _TABLES)
    vocab = checkpoint.config.get("vocab_size")
    if LM_HEAD not in checkpoint.tensors or type(vocab) is not int:
        message = "the drafter borrows its target's head; only one of its own can be cut"
        raise ProblemError("head-refused", message, [Offender(where=LM_HEAD, message=message)])
    rows = checkpoint.tensors[LM_HEAD].shape[0]
    old = torch.arange(rows)
    if (d2t := checkpoint.tensors.get(D2T)) is not None:
        old = old + read_rows(folder / d2t.file, d2t, 0, d2t.shape[0])
    return Native(vocab, tables, old)


def slice_native(folder: Path, checkpoint: Checkpoint, ids: Tensor) -> Cut:
    """A drafter's own head cut to `ids`, with `d2t` and `t2d` as its family reads them.

    ProblemError("draft-vocab-invalid") also for tokens that a drafter with fewer rows never had.
    """
    native = read_native(folder, checkpoint)
    check_ids(ids.tolist(), native.vocab)
    places = _places(native.old, ids)
    stored = [_gathered(folder / info.file, info, info.name, places) for info in native.tables]
    marks = torch.zeros(native.vocab, dtype=torch.bool)
    marks[ids] = True
    stored += [_values(D2T, ids - torch.arange(len(ids))), _values(T2D, marks)]
    return stored, {"draft_vocab_size": len(ids), "tie_word_embeddings": False}


def _places(old: Tensor, ids: Tensor) -> Tensor:
    where = {token: place for place, token in enumerate(old.tolist())}
    missing = [token for token in ids.tolist() if token not in where]
    if missing:
        offenders = [
            Offender(where="ids", message="the drafter has no row for it", value=token) for token in missing[:100]
        ]
        raise ProblemError("draft-vocab-invalid", f"{len(missing)} ids have no row in the drafter's head", offenders)
    return torch.tensor([where[token] for token in ids.tolist()], dtype=torch.int64)


def _gathered(path: Path, info: TensorInfo, name: str, places: Tensor) -> Stored:
    """Rows of a stored tensor. The mapping holds on to the file, which may be the one that is replaced."""
    width = info.nbytes // info.shape[0]
    mapped = np.memmap(path, np.uint8, "r", info.start, (info.shape[0], width))
    output = OutputTensor(name=name, dtype=info.dtype, shape=(len(places), *info.shape[1:]))
    return Stored(output, lambda: (mapped[part.numpy()].reshape(-1) for part in torch.split(places, ROWS)))


def _values(name: str, values: Tensor) -> Stored:
    dtype = "BOOL" if values.dtype == torch.bool else "I64"
    return Stored(OutputTensor(name=name, dtype=dtype, shape=tuple(values.shape)), lambda: (raw(values),))


def has_mtp(names: Mapping[str, TensorInfo]) -> bool:
    return any(name.startswith("mtp.") for name in names)
