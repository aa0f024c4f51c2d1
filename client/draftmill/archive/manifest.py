"""MANIFEST: every file of a boot with its size and SHA-256, written after all of them."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from draftmill._model import Model
from draftmill.archive.layout import MANIFEST
from draftmill.digests import canonical
from draftmill.receipts import BootId
from draftmill.reports import ManifestFile


class BootManifest(Model):
    boot: BootId
    files: tuple[ManifestFile, ...]
    """Sorted by path; without MANIFEST itself."""

    def bytes(self) -> bytes:
        return canonical(self) + b"\n"


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_of(folder: Path) -> list[str]:
    """Everything in a boot's folder but MANIFEST, relative and sorted; folders, which do not belong there, end in /."""
    return sorted(name for name in _names(folder) if name != MANIFEST)


def _names(folder: Path) -> Iterator[str]:
    for path in folder.iterdir():
        is_folder = path.is_dir() and not path.is_symlink()
        yield f"{path.name}/" if is_folder else path.name


def make(folder: Path, boot: str) -> BootManifest:
    """Of the files that are there now."""
    files = [
        ManifestFile(path=name, size=(folder / name).stat().st_size, sha256=sha256_of(folder / name))
        for name in files_of(folder)
    ]
    return BootManifest(boot=boot, files=tuple(files))
