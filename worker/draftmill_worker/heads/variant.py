"""Carrying out what was asked of a head in a variant directory. Each step can be done again and gives the same."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from draftmill.heads import HeadOptions
from draftmill.plans import OutputTensor
from draftmill_worker.checkpoint.checkpoint import CONFIG, Checkpoint, open_checkpoint
from draftmill_worker.checkpoint.config import load_object
from draftmill_worker.checkpoint.headers import TensorInfo, read_header
from draftmill_worker.heads import config, draft_head, rounded
from draftmill_worker.heads.rewrite import Write, rewrite, stored_in, write_file, write_json
from draftmill_worker.heads.source import HeadSource
from draftmill_worker.quantize.formats.pack_quantized import PACKED, SCALE, SHAPE

STORED = ("weight", PACKED, SCALE, SHAPE, "weight_zero_point", "weight_g_idx", "input_scale", "weight_scale_2")
"""Every form in which some quantizer stores a module: none of it may stay beside the new one."""


@dataclass(frozen=True)
class Change:
    """What a step took out of a directory's shards, and what it put in."""

    removed: tuple[str, ...]
    added: tuple[OutputTensor, ...]

    def then(self, other: "Change") -> "Change":
        """Both, one after the other."""
        names = {output.name for output in other.added} | set(other.removed)
        left = tuple(output for output in self.added if output.name not in names)
        added = {output.name for output in other.added}
        removed = {*self.removed, *other.removed} - added
        return Change(tuple(sorted(removed)), (*left, *other.added))


NOTHING = Change((), ())


@dataclass(frozen=True)
class Rewritten:
    """Modules whose new tensors lie in a file, and the group that describes them."""

    file: Path
    group: config.Group


def head_group(source: HeadSource, bits: int) -> config.Group:
    return config.Group("draftmill_head", config.HEAD, bits, (source.module, draft_head.MODULE))


def rounded_groups(checkpoint: Checkpoint, options: HeadOptions) -> list[tuple[config.Group, tuple[TensorInfo, ...]]]:
    """What is to be rounded beside the head. ProblemError("head-refused")."""
    found = []
    if options.embeddings is not None:
        tensors = rounded.embeddings(checkpoint)
        group = config.Group("draftmill_embeddings", config.EMBEDDING, options.embeddings, _modules(tensors))
        found.append((group, tensors))
    if options.mtp is not None:
        tensors = rounded.block(checkpoint)
        found.append((config.Group("draftmill_mtp", rounded.MTP, options.mtp, _modules(tensors)), tensors))
    return found


def _modules(tensors: Sequence[TensorInfo]) -> tuple[str, ...]:
    return tuple(tensor.name.removesuffix(".weight") for tensor in tensors)


def place(out: Path, rewritten: Sequence[Rewritten], *, tied: bool, write: Write = write_file) -> Change:
    """Put rewritten modules into the directory `out` in place of what it has of them, and say so in its configuration.

    `tied`: the head was the embedding, which stays; the directory then has a head of its own. A draft head that was cut
    from an older head goes with it.
    """
    checkpoint, change = open_checkpoint(out), NOTHING
    for one in rewritten:
        new = [stored_in(one.file, info) for info in read_header(one.file).values()]
        old = [name for name in checkpoint.tensors if _is_of(name, one.group.modules)]
        rewrite(out, old, new, write)
        change = change.then(Change(tuple(old), tuple(tensor.output for tensor in new)))
    groups = [one.group for one in rewritten]
    plain = _plain(open_checkpoint(out))
    changed = config.with_groups(_config(out), groups, plain)
    if any(draft_head.MODULE in group.modules for group in groups):
        changed = {key: value for key, value in changed.items() if key not in draft_head.KEYS}
    write_json(out / CONFIG, config.untied(changed) if tied else changed)
    sidecar = out / config.SIDECAR
    if sidecar.is_file():
        write_json(sidecar, config.merged(load_object(sidecar.read_bytes(), sidecar.name), groups, plain))
    return change


def _is_of(name: str, modules: Collection[str]) -> bool:
    module, _, suffix = name.rpartition(".")
    stale = name == draft_head.IDS and draft_head.MODULE in modules
    return stale or (module in modules and suffix in STORED)


def _plain(checkpoint: Checkpoint) -> list[str]:
    return [name.removesuffix(".weight") for name, tensor in checkpoint.tensors.items() if name.endswith(".weight")]


def cut(out: Path, ids: Tensor, *, community: bool, write: Write = write_file) -> Change:
    """Give the directory a draft vocabulary: an MTP block's draft head, or a native drafter's own."""
    checkpoint = open_checkpoint(out)
    mtp = draft_head.has_mtp(checkpoint.tensors)
    stored, keys = (draft_head.slice_mtp if mtp else draft_head.slice_native)(out, checkpoint, ids)
    rewrite(out, (), stored, write)
    write_json(out / CONFIG, _config(out) | keys)
    if community and mtp:
        draft_head.write_community(out, ids)
    return Change((), tuple(tensor.output for tensor in stored))


def _config(out: Path) -> dict[str, Any]:
    return load_object((out / CONFIG).read_bytes(), CONFIG)
