"""Draft vocabularies: wrong ids leave every output as it is and drive acceptance to nothing."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from draftmill_worker.checkpoint.checkpoint import CONFIG
from draftmill_worker.checkpoint.headers import TensorInfo
from draftmill_worker.heads.draft_head import D2T, IDS, IDS_KEY, LM_HEAD, MODULE, SIZE_KEY, T2D
from draftmill_worker.heads.tensors import CHUNK, read
from draftmill_worker.heads.verify.registry import check
from draftmill_worker.heads.verify.view import View
from draftmill_worker.quantize.formats.pack_quantized import PACKED, SCALE
from draftmill_worker.verify.registry import Result, skipped


@check("draft-ids", "draft ids are sorted, unique, inside the vocabulary, and the same wherever they are written")
def draft_ids(view: View) -> Result:
    plan = view.plan.draft_vocab
    if plan is None:
        return skipped("no draft vocabulary was asked for")
    result = Result(evidence={"size": plan.size})
    ids = _ids(view, plan.native, result)
    if ids is None:
        return result
    vocab = _vocab(view)
    if bool((ids.diff() <= 0).any()):
        result.blame(IDS if not plan.native else D2T, "ids are not sorted, or given twice")
    if bool(((ids < 0) | (ids >= vocab)).any()):
        result.blame(IDS if not plan.native else D2T, f"ids outside [0, {vocab})")
    if len(ids) != plan.size or hashlib.sha256(ids.numpy().astype("<i8").tobytes()).hexdigest() != plan.sha256:
        result.blame("ids", "are not those that were chosen", len(ids))
    said = view.after.config.get("draft_vocab_size" if plan.native else SIZE_KEY)
    if said != plan.size:
        result.blame(CONFIG, f"must say {plan.size}", said)
    if not plan.native and view.after.config.get(IDS_KEY) != ids.tolist():
        result.blame(f"{CONFIG}: {IDS_KEY}", "differs from the tensor")
    return result


def _ids(view: View, native: bool, result: Result) -> Tensor | None:
    name = D2T if native else IDS
    info = view.after.tensors.get(name)
    if info is None or info.dtype != "I64" or len(info.shape) != 1 or info.shape[0] == 0:
        result.blame(
            name, "I64 of one dimension expected", None if info is None else f"{info.dtype} {list(info.shape)}"
        )
        return None
    ids = view.read(name)
    return ids + torch.arange(len(ids)) if native else ids


def _vocab(view: View) -> int:
    inner = view.after.config.get("text_config")
    values = [view.after.config.get("vocab_size"), inner.get("vocab_size") if isinstance(inner, dict) else None]
    return next((value for value in values if type(value) is int), 0)


@check("draft-rows", "the draft head is there, and its rows are the head's rows of the draft ids, bit for bit")
def draft_rows(view: View) -> Result:
    plan = view.plan.draft_vocab
    if plan is None:
        return skipped("no draft vocabulary was asked for")
    result = Result(evidence={"size": plan.size})
    ids = _ids(view, plan.native, result)
    if ids is None:
        return result
    pairs = _native_pairs(view, result) if plan.native else _mtp_pairs(view, result)
    for draft, (folder, head, places) in pairs.items():
        wanted_rows = ids if places is None else places(ids)
        info = view.after.tensors.get(draft)
        if info is None or info.dtype != head.dtype or info.shape != (len(ids), *head.shape[1:]):
            result.blame(draft, f"{head.dtype} {[len(ids), *head.shape[1:]]} expected")
        elif wanted_rows is None or int(wanted_rows.max()) >= head.shape[0] or int(wanted_rows.min()) < 0:
            result.blame(draft, "its ids name rows that the head does not have")
        elif not _same_rows(view.variant / info.file, info, folder / head.file, head, wanted_rows):
            result.blame(draft, "rows differ from the head's")
    return result


Pairs = dict[str, tuple[Path, TensorInfo, Callable[[Tensor], Tensor | None] | None]]


def _mtp_pairs(view: View, result: Result) -> Pairs:
    found: Pairs = {}
    tensors = view.after.tensors
    packed = next(
        (name for name in tensors if name.endswith(f"lm_head.{PACKED}") and not name.startswith("mtp.")), None
    )
    if packed is not None:
        stem = packed.removesuffix(PACKED)
        for suffix in (PACKED, SCALE):
            found[f"{MODULE}.{suffix}"] = (view.variant, tensors[stem + suffix], None)
        return found
    head = next((name for name in tensors if name.endswith(LM_HEAD) and not name.startswith("mtp.")), None)
    if head is None:
        result.blame(LM_HEAD, f"is not stored: vLLM would take {MODULE}.weight for it")
        return found
    return {f"{MODULE}.weight": (view.variant, tensors[head], None)}


def _native_pairs(view: View, result: Result) -> Pairs:
    """Rows come from the source's own tables, by the target ids that those had."""
    before = view.before.tensors
    if LM_HEAD not in before:
        result.blame(LM_HEAD, "the source has no head of its own")
        return {}
    old = torch.arange(before[LM_HEAD].shape[0])
    if D2T in before:
        old = old + read(view.source / before[D2T].file, before[D2T])
    where = {token: place for place, token in enumerate(old.tolist())}

    def places(ids: Tensor) -> Tensor | None:
        found = [where.get(token, -1) for token in ids.tolist()]
        return torch.tensor(found)

    tables = (LM_HEAD, "markov_head.markov_w2.weight")
    marks, ids = view.after.tensors.get(T2D), _ids(view, True, result)
    if marks is None or ids is None or not torch.equal(view.read(T2D).nonzero().flatten(), ids):
        result.blame(T2D, "must mark exactly the draft ids")
    return {name: (view.source, before[name], places) for name in tables if name in before}


def _same_rows(draft: Path, info: TensorInfo, head: Path, whole: TensorInfo, ids: Tensor) -> bool:
    width = whole.nbytes // max(whole.shape[0], 1)
    mapped = np.memmap(head, np.uint8, "r", whole.start, (whole.shape[0], width))
    step = max(1, CHUNK // max(width, 1))
    for first in range(0, len(ids), step):
        part = ids[first : first + step].numpy()
        raw = np.fromfile(draft, np.uint8, len(part) * width, offset=info.start + first * width)
        if not np.array_equal(mapped[part].reshape(-1), raw):
            return False
    return True
