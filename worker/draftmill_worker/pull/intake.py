"""Single files of a local folder: hashed, copied or linked, with the identity they had meanwhile."""

import errno
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftmill.problems import Offender, ProblemError
from draftmill.reports import ManifestFile
from draftmill_worker.checkpoint.hashing import CHUNK
from draftmill_worker.checkpoint.identity import FileIdentity
from draftmill_worker.pull.folder import SourceFolder, identity_of, scan
from draftmill_worker.pull.roots import opened

# Another volume, another user's file under protected_hardlinks, a file system without links, too many of them.
_NO_LINK = {
    errno.EXDEV: "another volume",
    errno.EPERM: "not permitted",
    errno.EACCES: "not permitted",
    errno.EMLINK: "too many links",
    errno.ENOTSUP: "not supported by the file system",
    errno.ENOENT: "removed meanwhile",  # the copy that is tried instead names the file
}


@dataclass(frozen=True)
class Taken:
    entry: ManifestFile
    identity: FileIdentity
    linked: bool = False
    note: str | None = None


def hash_file(source: SourceFolder, name: str, advance: Callable[[int], None]) -> Taken:
    """The file's entry for a manifest; nothing is written."""
    with opened(source.path / name, source.roots) as descriptor:
        return _taken(name, descriptor, None, advance)


def copy_file(source: SourceFolder, name: str, folder: Path, advance: Callable[[int], None]) -> Taken:
    """Copy the file into `folder`, hashed on the way."""
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with opened(source.path / name, source.roots) as descriptor:
        out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            return _taken(name, descriptor, out, advance)
        finally:
            os.close(out)


def link_file(source: SourceFolder, name: str, folder: Path, advance: Callable[[int], None]) -> Taken:
    """Hard-link the file into `folder`, or copy it where that cannot be, and say so in the note."""
    with opened(source.path / name, source.roots) as descriptor:
        try:
            # The descriptor's own file: neither the name of a link nor one that took its place meanwhile.
            # Python follows links only through linkat, which it calls only when a directory is given; an absolute path
            # makes any do.
            os.link(f"/proc/self/fd/{descriptor}", folder / name, src_dir_fd=descriptor, follow_symlinks=True)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            reason = _NO_LINK[error.errno]
        else:
            return _taken(name, descriptor, None, advance, linked=True)
    copied = copy_file(source, name, folder, advance)
    return Taken(copied.entry, copied.identity, note=f"{name} was copied, not linked: {reason}")


def check_unchanged(source: SourceFolder, taken: Sequence[Taken]) -> None:
    """Raises `source-changed` when a file is not as it was while it was read, or the set of files is another."""
    offenders = [
        Offender(where=item.entry.path, message="changed while it was read")
        for item in taken
        if not source.has(item.entry.path) or source.identity(item.entry.path) != item.identity
    ]
    now = scan(source.path, source.roots).sizes.keys()
    offenders += [Offender(where=name, message="appeared meanwhile") for name in sorted(now - source.sizes.keys())]
    if offenders:
        raise ProblemError("source-changed", f"{offenders[0].where} {offenders[0].message}", offenders)


def _taken(
    name: str, descriptor: int, out: int | None, advance: Callable[[int], None], *, linked: bool = False
) -> Taken:
    before = identity_of(os.fstat(descriptor))
    sha256 = hashlib.sha256()
    size = 0
    while chunk := os.read(descriptor, CHUNK):
        sha256.update(chunk)
        rest = memoryview(chunk)
        while out is not None and rest:
            rest = rest[os.write(out, rest) :]
        size += len(chunk)
        advance(len(chunk))
    if size != before.size:
        offender = Offender(where=name, message="changed while it was read")
        raise ProblemError("source-changed", f"{name} {offender.message}", [offender])
    return Taken(ManifestFile(path=name, size=size, sha256=sha256.hexdigest()), before, linked)
