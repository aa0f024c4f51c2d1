"""A variant directory in the making: the source's shards as hard links, what is small or rewritten as copies.

A write through a hard link changes the source. So only what nobody opens for writing is linked: whole weight shards
that the source's index names. Backups of shards, pickles and hidden files stay behind.
"""

import errno
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from draftmill_worker.checkpoint.checkpoint import INDEX, PICKLE_SUFFIXES, WEIGHTS_SUFFIX, Checkpoint

_REFUSALS = {errno.EXDEV: "another file system", errno.EPERM: "the system refuses to link it", errno.EMLINK: "links"}
_LEFT = (".bak", ".bak-orig", *PICKLE_SUFFIXES, WEIGHTS_SUFFIX)


@dataclass
class Placed:
    linked: list[str] = field(default_factory=list)
    copied: dict[str, str] = field(default_factory=dict)
    """Why, by weight shard that is no link."""
    sidecars: list[str] = field(default_factory=list)


def make_directory(source: Path, checkpoint: Checkpoint, out: Path, *, link: bool = True) -> Placed:
    """Fill `out`, which is made, with the checkpoint in `source`. `link=False` copies shards too.

    Links go to what a symbolic link means, as in a cache of the Hub. Copies are new files with a mode of their own.
    """
    out.mkdir(parents=True)
    placed = Placed()
    for name in checkpoint.files:
        reason = _link(source / name, out / name) if link else "links were not asked for"
        if reason is None:
            placed.linked.append(name)
        else:
            placed.copied[name] = reason
            _copy(source / name, out / name)
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith(_LEFT):
            _copy(path, out / path.name)
            if path.name != INDEX:
                placed.sidecars.append(path.name)
    return placed


def _link(source: Path, out: Path) -> str | None:
    """None when linked, else why not."""
    try:
        os.link(os.path.realpath(source), out)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        return _REFUSALS[error.errno]
    return None


def _copy(source: Path, out: Path) -> None:
    # Contents alone: the source's files are read-only, these are not yet.
    shutil.copyfile(source, out)
    out.chmod(0o644)
