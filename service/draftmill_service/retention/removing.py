"""Removing one item: tombstone, then one rename into the trash of its tree. Deleting comes last and may be cut short.

Whoever uses a variant or a source takes its lock and sets its mark; so an item whose lock is free and whose mark is the
one that was decided on is nobody's, and stays so while the lock is held here.
"""

import fcntl
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from draftmill_service.retention.layout import IDENTITY, MANIFEST, TRASH, TREES, Item, Kind, inventory, used_at
from draftmill_service.retention.pins import write_json
from draftmill_service.retention.policy import Removal
from draftmill_service.retention.tombstones import Tombstone

TOMBSTONE = ".tombstone.json"


class Remover:
    def __init__(self, data: Path, receipts: Mapping[str, Sequence[str]], now: datetime) -> None:
        self._data = data
        self._receipts = receipts
        self._now = now

    def remove(self, removal: Removal) -> str | None:
        """None when it is gone, else why it was kept: somebody uses it now."""
        item = removal.item
        if item.kind is Kind.TRASH:
            return None
        if item.kind is Kind.VARIANT:
            (self._data / item.mark).parent.mkdir(parents=True, exist_ok=True)
        with try_lock(self._data / item.lock if item.lock else None, keep=item.kind is Kind.VARIANT) as held:
            if not held:
                return "somebody holds its lock"
            if not self._as_decided(item):
                return "it was used meanwhile"
            self._bury(removal)
            self._to_trash(item)
            if item.kind is Kind.SOURCE:
                self._forget(item.name)
        return None

    def finish(self) -> None:
        """What an earlier run that was cut short left beside sources it had removed."""
        for tombstone in (self._data / "sources").rglob(f"*{TOMBSTONE}"):
            name = tombstone.relative_to(self._data).as_posix().removesuffix(TOMBSTONE)
            with try_lock(self._data / f"{name}.lock") as held:
                if held and not (self._data / name).exists():
                    self._forget(name)

    def empty_trash(self) -> None:
        for tree in TREES:
            trash = self._data / tree / TRASH
            for folder in trash.iterdir() if trash.is_dir() else ():
                _delete(folder)

    def _as_decided(self, item: Item) -> bool:
        if not (self._data / item.name).is_dir():
            return False
        if item.kind is Kind.PARTIAL:
            return any(other.name == item.name and other.used == item.used for other in inventory(self._data))
        # A variant that has no manifest has no mark of its own.
        marked = used_at(self._data / item.mark) or used_at(self._data / item.name)
        # Of attempts and batches the ledger says whether they may go.
        return marked == item.used or item.kind in (Kind.ATTEMPT, Kind.SCRATCH, Kind.BATCH)

    def _bury(self, removal: Removal) -> None:
        item = removal.item
        if item.tombstone is None:
            return
        stone = Tombstone(
            name=item.name,
            kind=item.kind,
            removed_at=self._now,
            why=removal.why,
            bytes=item.bytes,
            receipts=tuple(self._receipts.get(item.job or item.name, ())),
        )
        write_json(self._data / item.tombstone, stone.model_dump(mode="json"))

    def _to_trash(self, item: Item) -> None:
        trash = self._data / item.name.split("/")[0] / TRASH
        trash.mkdir(exist_ok=True)
        folder = self._data / item.name
        # To move a folder is to write to it, which a variant's own mode forbids.
        folder.chmod(folder.stat().st_mode | stat.S_IWUSR)
        folder.rename(trash / f"{uuid.uuid4().hex}-{folder.name}")

    def _forget(self, name: str) -> None:
        for suffix in (MANIFEST, IDENTITY):
            (self._data / f"{name}{suffix}").unlink(missing_ok=True)


@contextmanager
def try_lock(path: Path | None, *, keep: bool = False) -> Iterator[bool]:
    """Whether the lock was free and is held meanwhile. Its file is removed while it is held, unless `keep`."""
    if path is None:
        yield True
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        # The last holder may have removed the name that was opened: such a lock keeps nobody out.
        if not _has_name(descriptor, path):
            yield False
            return
        try:
            yield True
        finally:
            if not keep:
                path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _has_name(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _delete(folder: Path) -> None:
    for root, _, _ in os.walk(folder):
        os.chmod(root, stat.S_IMODE(os.stat(root).st_mode) | stat.S_IRWXU)  # noqa: PTH101, PTH116
    shutil.rmtree(folder)
