"""What says that a file was not touched, without reading it."""

from pathlib import Path
from typing import NamedTuple

from draftmill.problems import Offender
from draftmill.reports import Manifest
from draftmill_worker.checkpoint.hashing import sha256_file


class FileIdentity(NamedTuple):
    """A change of content changes at least ctime_ns; a replaced file has another inode."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def fingerprint(folder: Path) -> dict[str, FileIdentity]:
    """Identity of every file under `folder`, by path relative to it, in sorted order."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            found[path.relative_to(folder).as_posix()] = FileIdentity(
                status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            )
    return found


def changed(folder: Path, before: dict[str, FileIdentity], manifest: Manifest | None = None) -> list[Offender]:
    """One offender for each file that was added, removed or changed since `before`.

    `before` may come from JSON, where the tuples became lists. A new or lost hard link changes a file's ctime and
    nothing else: where the manifest has the file's hash, that is compared before it counts as changed.
    """
    known = {} if manifest is None else {file.path: file.sha256 for file in manifest.files}
    now = fingerprint(folder)
    offenders = [Offender(where=name, message="removed") for name in sorted(before.keys() - now.keys())]
    offenders += [Offender(where=name, message="added") for name in sorted(now.keys() - before.keys())]
    for name in sorted(now.keys() & before.keys()):
        then = FileIdentity(*before[name])
        fields = [field for field in FileIdentity._fields if getattr(then, field) != getattr(now[name], field)]
        if fields == ["ctime_ns"] and name in known and sha256_file(folder / name) == known[name]:
            continue
        if fields:
            offenders.append(Offender(where=name, message=f"changed: {', '.join(fields)}"))
    return offenders
