"""From a source to a variant with a rewritten head or a draft vocabulary, and what it then is."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from draftmill.heads import Coverage, DraftVocab, DraftVocabOptions, HeadGroup, HeadOptions, HeadPlan, HeadReport
from draftmill.plans import OutputTensor
from draftmill_worker.checkpoint.checkpoint import Checkpoint, open_checkpoint
from draftmill_worker.checkpoint.headers import DTYPE_BYTES
from draftmill_worker.files import write_atomic
from draftmill_worker.heads import rounded, variant
from draftmill_worker.heads.directory import make_directory
from draftmill_worker.heads.draft_head import has_mtp
from draftmill_worker.heads.quantize import Progress, quantize_head
from draftmill_worker.heads.rows import Rows
from draftmill_worker.heads.source import check_read_packed, find_head

CAPTURE, IDS = "capture", "ids.json"
"""Folder below an attempt's scratch with what was captured, and the file of chosen ids in it."""
RECORD = "head.json"
"""The plan, in the variant."""


@dataclass(frozen=True)
class Asked:
    head: HeadOptions | None
    draft_vocab: DraftVocabOptions | None
    ids: Tensor | None
    """int64, sorted: what the draft vocabulary came to."""
    coverage: tuple[Coverage, ...]
    rows: Rows | None


def mill_head(source: Path, asked: Asked, out: Path, scratch: Path, progress: Progress) -> HeadPlan:
    """Make the variant in `out`, which must not exist, and write its record into it. `scratch` takes packed matrices.

    Problems: those of `find_head`, `quantize_head`, `rounded_groups` and `cut`.
    """
    checkpoint = open_checkpoint(source)
    report, rewritten, tied = _rewritten(source, checkpoint, asked, scratch, progress)
    placed = make_directory(source, checkpoint, out)
    change = variant.place(out, rewritten, tied=tied) if rewritten else variant.NOTHING
    if asked.ids is not None and asked.draft_vocab is not None:
        community = asked.draft_vocab.layout == "community"
        change = change.then(variant.cut(out, asked.ids, community=community))
    plan = HeadPlan(
        source_tensor=None if report is None else report.source,
        tied=tied,
        groups=tuple(
            HeadGroup(name=one.group.name, targets=one.group.targets, bits=one.group.bits, modules=one.group.modules)
            for one in rewritten
        ),
        draft_vocab=_vocabulary(asked, checkpoint),
        removed=tuple(sorted(set(change.removed) & checkpoint.tensors.keys())),
        added=change.added,
        linked=tuple(name for name in placed.linked if (out / name).exists() and _is_link(source / name, out / name)),
        kept=len(checkpoint.tensors.keys() - {*change.removed, *(output.name for output in change.added)}),
        source_bytes=checkpoint.nbytes,
        variant_bytes=_bytes(checkpoint, change),
        report=report,
    )
    write_atomic(out / RECORD, plan.model_dump_json(by_alias=True, indent=1).encode())
    return plan


def _rewritten(
    source: Path, checkpoint: Checkpoint, asked: Asked, scratch: Path, progress: Progress
) -> tuple[HeadReport | None, list[variant.Rewritten], bool]:
    options = asked.head
    if options is None:
        return None, [], False
    head = find_head(source, checkpoint)
    check_read_packed(checkpoint)
    # What is refused is refused before the long work.
    beside = variant.rounded_groups(checkpoint, options)
    scratch.mkdir(parents=True, exist_ok=True)
    report = quantize_head(head, options, asked.rows, scratch / "head.safetensors", progress)
    found = [variant.Rewritten(scratch / "head.safetensors", variant.head_group(head, options.bits))]
    for group, tensors in beside:
        file = scratch / f"{group.name}.safetensors"
        rounded.round_all(source, tensors, group.bits, file)
        found.append(variant.Rewritten(file, group))
    return report, found, head.tied


def _vocabulary(asked: Asked, checkpoint: Checkpoint) -> DraftVocab | None:
    if asked.draft_vocab is None or asked.ids is None:
        return None
    return DraftVocab(
        size=len(asked.ids),
        sha256=ids_sha256(asked.ids),
        layout=asked.draft_vocab.layout,
        native=not has_mtp(checkpoint.tensors),
        coverage=asked.coverage,
    )


def ids_sha256(ids: Tensor) -> str:
    """Of the ids as little-endian int64."""
    return hashlib.sha256(ids.numpy().astype("<i8").tobytes()).hexdigest()


def _is_link(source: Path, out: Path) -> bool:
    return source.samefile(out)


def _bytes(checkpoint: Checkpoint, change: variant.Change) -> int:
    gone = {*change.removed, *(output.name for output in change.added)}
    kept = sum(info.nbytes for name, info in checkpoint.tensors.items() if name not in gone)
    return kept + sum(_nbytes(output) for output in change.added)


def _nbytes(output: OutputTensor) -> int:
    return math.prod(output.shape) * DTYPE_BYTES[output.dtype]
