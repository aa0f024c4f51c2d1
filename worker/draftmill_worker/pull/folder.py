"""A checkpoint folder of this machine, read only through the operator's roots."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from draftmill_worker.checkpoint.findings import Findings
from draftmill_worker.checkpoint.identity import FileIdentity
from draftmill_worker.pull.listing import allowed
from draftmill_worker.pull.roots import allowed_target, not_allowed, opened


@dataclass(frozen=True)
class SourceFolder:
    """The folder and the root files that a pull takes. A `Tree` for finding modules."""

    path: Path
    roots: tuple[Path, ...]
    sizes: dict[str, int]
    """Bytes of each file the allow-list takes."""
    siblings: tuple[str, ...] = field(repr=False)
    """Names of everything in the folder."""

    def has(self, path: str) -> bool:
        return (self.path / path).is_file()

    def size(self, path: str) -> int:
        return self.identity(path).size

    def read(self, path: str) -> bytes:
        with opened(self.path / path, self.roots) as descriptor, os.fdopen(os.dup(descriptor), "rb") as stream:
            return stream.read()

    def volume(self, path: str) -> int:
        return (self.path / path).stat().st_dev

    def identity(self, path: str) -> FileIdentity:
        return identity_of((self.path / path).stat())


def scan(folder: Path, roots: Sequence[Path]) -> SourceFolder:
    """The folder's files by the allow-list.

    Raises `path-not-allowed` with every file that a link places outside the roots, `incomplete-checkpoint` for links
    that lead nowhere, as a half-downloaded Hub cache has.
    """
    siblings = sorted(path.name for path in folder.iterdir())
    taken = [name for name in siblings if allowed(name) and not (folder / name).is_dir()]
    outside = [name for name in taken if not allowed_target(folder / name, roots)]
    if outside:
        raise not_allowed(outside)
    findings = Findings()
    for name in taken:
        if not (folder / name).exists():
            findings.add("incomplete-checkpoint", name, "is a link to a file that is not there")
        elif not (folder / name).is_file():
            findings.add("path-not-allowed", name, "is no regular file")
    findings.raise_any()
    sizes = {name: (folder / name).stat().st_size for name in taken}
    return SourceFolder(folder, tuple(roots), sizes, tuple(siblings))


def identity_of(status: os.stat_result) -> FileIdentity:
    return FileIdentity(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
