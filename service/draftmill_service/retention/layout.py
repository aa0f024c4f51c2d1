"""Where things that can be removed lie in a data directory, and what lies beside each.

An item's name is its path relative to the data directory: `variants/<digest>`, `sources/<repository>/<commit>`,
`sources/path-<digest>`, `jobs/<job>/<attempt>`, `batches/<batch>`. The worker writes these places, but for the last;
`draftmill_worker.pull.store.Slot`, `.variants.VariantStore` and `.scratch.Scratch` hold the same locks.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from draftmill.batches import BATCH_ID
from draftmill.jobs import JOB_ID

TRASH = ".trash"
"""Folder in each of the trees below: what was renamed into it is gone, and is deleted from there."""
TREES = ("variants", "sources", "jobs", "batches")
DIGEST = re.compile(r"[0-9a-f]{64}")
PARTIAL = ".partial"
MANIFEST = ".manifest.json"
IDENTITY = ".identity.json"
PROMPTS = "prompts"


class Kind(StrEnum):
    VARIANT = "variant"
    SOURCE = "source"
    ATTEMPT = "attempt"
    """Requests, results and logs of a job that is done. Its record stays, in the ledger and beside the attempts."""
    BATCH = "batch"
    """A batch that is done, whole: its record here and in the ledger. Its jobs stay."""
    PARTIAL = "partial"
    """A pull that stopped half-way."""
    SCRATCH = "scratch"
    """Working folder of an attempt whose process died."""
    TRASH = "trash"
    """What an earlier run removed and did not get to delete."""


@dataclass(frozen=True, order=True)
class Item:
    used: int
    """When it was used last, in nanoseconds since 1970."""
    kind: Kind
    name: str
    bytes: int

    @property
    def job(self) -> str | None:
        """`jobs/<job>`, where it is a job's."""
        return "/".join(self.name.split("/")[:2]) if self.kind in (Kind.ATTEMPT, Kind.SCRATCH) else None

    @property
    def lock(self) -> str | None:
        """Path of the lock under which it is used and removed."""
        match self.kind:
            case Kind.VARIANT:
                return f"evidence/{self.name.removeprefix('variants/')}/.lock"
            case Kind.SOURCE:
                return f"{self.name}.lock"
            case Kind.PARTIAL:
                return f"{self.name.removesuffix(PARTIAL)}.lock"
            case Kind.SCRATCH | Kind.ATTEMPT:
                return f"{self.name.removesuffix('/scratch')}/.lock"
        return None

    @property
    def mark(self) -> str:
        """Path whose modification time says when it was used last."""
        match self.kind:
            case Kind.VARIANT:
                return f"evidence/{self.name.removeprefix('variants/')}/manifest.json"
            case Kind.SOURCE:
                return f"{self.name}{MANIFEST}"
        return self.name

    @property
    def tombstone(self) -> str | None:
        """Path of what stays when it is removed; None for what nobody can name."""
        match self.kind:
            case Kind.VARIANT:
                return f"evidence/{self.name.removeprefix('variants/')}/tombstone.json"
            case Kind.SOURCE | Kind.BATCH:
                return f"{self.name}.tombstone.json"
            case Kind.ATTEMPT:
                return f"{self.job}/tombstone.json"
        return None


def source_name(repo: str, commit: str) -> str:
    return f"sources/{repo.replace('/', '--')}/{commit}"


def size_of(folder: Path) -> int:
    """Bytes of the files below; what vanishes meanwhile counts as nothing."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_size  # noqa: PTH118 - hot, and no Path is needed
            except FileNotFoundError:
                continue
    return total


def inventory(data: Path) -> list[Item]:
    """Everything that gc may come to remove, least recently used first."""
    found = [*_variants(data), *_sources(data), *_attempts(data), *_batches(data), *_trash(data)]
    return sorted(found)


def used_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _item(data: Path, kind: Kind, name: str, used: int | None = None) -> Iterator[Item]:
    item = Item(0, kind, name, size_of(data / name))
    used = used_at(data / item.mark) if used is None else used
    if used is None and kind is Kind.VARIANT:
        used = used_at(data / name)
    if used is not None:
        yield Item(used, kind, name, item.bytes)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except FileNotFoundError:
        return []


def _variants(data: Path) -> Iterator[Item]:
    for folder in _children(data / "variants"):
        if DIGEST.fullmatch(folder.name):
            yield from _item(data, Kind.VARIANT, f"variants/{folder.name}")


def jobs(data: Path) -> list[Path]:
    return [folder for folder in _children(data / "jobs") if JOB_ID.fullmatch(folder.name)]


def batches(data: Path) -> list[Path]:
    return [folder for folder in _children(data / "batches") if BATCH_ID.fullmatch(folder.name)]


def _batches(data: Path) -> Iterator[Item]:
    for batch in batches(data):
        yield from _item(data, Kind.BATCH, f"batches/{batch.name}")


def _attempts(data: Path) -> Iterator[Item]:
    for job in jobs(data):
        for attempt in _children(job):
            name = f"jobs/{job.name}/{attempt.name}"
            if attempt.name.isdecimal():
                yield from _item(data, Kind.ATTEMPT, name)
            if (attempt / "scratch").is_dir():
                yield from _item(data, Kind.SCRATCH, f"{name}/scratch")


def _trash(data: Path) -> Iterator[Item]:
    for tree in TREES:
        for folder in _children(data / tree / TRASH):
            yield from _item(data, Kind.TRASH, f"{tree}/{TRASH}/{folder.name}")


def _sources(data: Path, below: str = "sources") -> Iterator[Item]:
    """Slots and partials, at any depth but never inside one another."""
    for folder in _children(data / below):
        name = f"{below}/{folder.name}"
        if (data / f"{name}{MANIFEST}").is_file():
            yield from _item(data, Kind.SOURCE, name)
        elif folder.name.endswith(PARTIAL):
            yield from _item(data, Kind.PARTIAL, name, _newest(folder))
        elif folder.name not in (TRASH, PROMPTS):
            yield from _sources(data, name)


def _newest(folder: Path) -> int | None:
    """When something below was written last."""
    times = [used_at(folder)]
    for root, _, files in os.walk(folder):
        times += [used_at(Path(root, name)) for name in files]
    return max((time for time in times if time is not None), default=None)
