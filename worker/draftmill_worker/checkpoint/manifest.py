"""Manifests of folders, and the rule that a path stays inside one."""

from collections.abc import Iterable
from pathlib import Path

from draftmill.problems import Offender, ProblemError
from draftmill.reports import Manifest, ManifestFile
from draftmill_worker.checkpoint.hashing import sha256_file

MAX_NAME_BYTES = 255


def inside(folder: Path, relative: str) -> Path:
    """The resolved path of `relative` under `folder`, symbolic links followed.

    Raises `unsafe-path` for what is absolute, leaves the folder, is the folder itself or cannot be a path.
    """
    root = folder.resolve()
    try:
        fits = all(len(part.encode()) <= MAX_NAME_BYTES for part in relative.split("/"))
        path = (root / relative).resolve()
    except (ValueError, OSError, RuntimeError) as error:  # NUL bytes, half surrogates, loops of links
        raise _unsafe(relative) from error
    if not fits or "\\" in relative:
        raise _unsafe(relative)
    # From Python 3.13 on a loop of links resolves to a link instead of raising.
    if path == root or not path.is_relative_to(root) or path.is_symlink():
        raise _unsafe(relative)
    return path


def make_manifest(folder: Path, files: Iterable[str] | None = None) -> Manifest:
    """Sizes and SHA-256 of `files` (relative, POSIX), or of every regular file under `folder`, sorted by path."""
    if files is None:
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    else:
        names = list(files)
    return Manifest(files=tuple(_entry(folder, name) for name in sorted(names)))


def _entry(folder: Path, name: str) -> ManifestFile:
    path = inside(folder, name)
    return ManifestFile(path=name, size=path.stat().st_size, sha256=sha256_file(path))


def _unsafe(relative: str) -> ProblemError:
    offender = Offender(where=relative[:512], message="the path leaves the checkpoint's folder")
    return ProblemError("unsafe-path", "a path leaves the checkpoint's folder", [offender])
