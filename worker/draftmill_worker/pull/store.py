"""Where a pulled source lies: filled beside its place, moved there whole, never written again."""

import os
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from draftmill.reports import Manifest, ManifestFile
from draftmill_worker.checkpoint.hashing import sha256_file
from draftmill_worker.checkpoint.identity import FileIdentity, changed, fingerprint
from draftmill_worker.files import remove_tree, sync, write_atomic
from draftmill_worker.locks import locked

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""

READ_ONLY = 0o444
_IDENTITY = TypeAdapter(dict[str, FileIdentity])


@dataclass(frozen=True)
class Pulled:
    folder: Path
    commit: str | None
    """None for a local path."""
    repo: str | None
    manifest: Manifest
    cached: bool
    """True when the source was there already and only its files' identity was checked."""
    notes: tuple[str, ...] = ()
    """What a reader should know, such as a link that had to become a copy."""


@dataclass(frozen=True)
class Slot:
    """The place of one source: `<parent>/<name>/`, and beside it its manifest, file identities, lock and partial."""

    parent: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.parent / self.name

    @property
    def partial(self) -> Path:
        return self.parent / f"{self.name}.partial"

    @property
    def manifest_path(self) -> Path:
        return self.parent / f"{self.name}.manifest.json"

    @property
    def identity_path(self) -> Path:
        return self.parent / f"{self.name}.identity.json"

    @property
    def tombstone_path(self) -> Path:
        """There when retention removed the folder."""
        return self.parent / f"{self.name}.tombstone.json"

    def locked(self) -> AbstractContextManager[None]:
        """One process at a time. A waiter finds what the holder left."""
        return locked(self.parent / f"{self.name}.lock")

    def sealed(self, progress: Progress | None = None) -> Manifest | None:
        """The manifest, when the folder is complete and its files are as they were when it was filled.

        Files whose inode, size and times are as recorded are not read. Any other is read again whole, since a hard
        link or a restored backup changes these too; a folder with other bytes counts as absent.
        """
        if not self.folder.is_dir() or not self.manifest_path.is_file():
            return None
        try:
            manifest = Manifest.model_validate_json(self.manifest_path.read_bytes())
        except ValidationError:
            return None
        if not self._untouched():
            if rehash(self.folder, manifest, progress) != manifest:
                return None
            self._record_identity(self.folder)
        # Retention leaves alone what was used just now.
        os.utime(self.manifest_path)
        self.tombstone_path.unlink(missing_ok=True)
        return manifest

    def seal(self, manifest: Manifest, linked: Collection[str] = ()) -> None:
        """Move the partial folder to its place, read-only. Everything in it is durable before it can be seen there.

        Files in `linked` keep their mode: it is the mode of the source's files too.
        """
        for entry in manifest.files:
            path = self.partial / entry.path
            if entry.path not in linked:
                path.chmod(READ_ONLY)
            sync(path)
        for root, _, _ in os.walk(self.partial):
            sync(Path(root))
        write_atomic(self.manifest_path, manifest.model_dump_json(indent=1).encode())
        self._record_identity(self.partial)
        try:
            self.partial.rename(self.folder)
        except OSError:
            # Where locks are not honoured another process was faster; its folder must hold the same.
            if self.sealed() != manifest:
                raise
            remove_tree(self.partial)
        self.tombstone_path.unlink(missing_ok=True)
        sync(self.parent)

    def discard(self) -> None:
        """Remove a folder that is not what its manifest says. Files that are open or linked elsewhere live on there."""
        self.manifest_path.unlink(missing_ok=True)
        self.identity_path.unlink(missing_ok=True)
        remove_tree(self.folder)

    def _untouched(self) -> bool:
        if not self.identity_path.is_file():
            return False
        try:
            before = _IDENTITY.validate_json(self.identity_path.read_bytes())
        except ValidationError:
            return False
        return not changed(self.folder, before)

    def _record_identity(self, folder: Path) -> None:
        write_atomic(self.identity_path, _IDENTITY.dump_json(fingerprint(folder)))


def rehash(folder: Path, manifest: Manifest, progress: Progress | None) -> Manifest | None:
    """The manifest of what is in the folder now, or None when files or sizes differ already."""
    present = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    expected = {entry.path: entry.size for entry in manifest.files}
    if {name: path.stat().st_size for name, path in present.items() if path.is_file()} != expected:
        return None
    total = sum(expected.values())
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return Manifest(
        files=tuple(
            ManifestFile(path=name, size=size, sha256=sha256_file(present[name], advance))
            for name, size in expected.items()
        )
    )


def sweep(folder: Path, wanted: Collection[str]) -> None:
    """Remove the files that an earlier try left in the folder and this one did not ask for."""
    for path in folder.rglob("*"):
        if not path.is_dir() and path.relative_to(folder).as_posix() not in wanted:
            path.unlink()
