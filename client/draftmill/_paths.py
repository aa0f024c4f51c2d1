"""Where a download goes: the paths that a server sent, and what lies in the folder, before anything is written."""

from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

from draftmill.errors import FolderTakenError
from draftmill.problems import Offender, ProblemError
from draftmill.reports import ManifestFile

# What an engine or its loader reads from a checkpoint folder, whether or not the variant names it.
_READ = ("*.safetensors", "*.index.json", "*config.json", "*.bin", "*.pt", "*.pth")


def foreign(folder: Path, files: Iterable[ManifestFile]) -> list[str]:
    """Names of checkpoint files in `folder` that none of `files` replaces; an engine would read them too.

    Parts of interrupted downloads have names of their own and are none.
    """
    own = {file.path for file in files}
    found = {str(path.relative_to(folder)) for pattern in _READ for path in folder.glob(pattern)}
    return sorted(found - own)


def _fault(path: str) -> str | None:
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or any(ord(character) < 32 for character in path):
        return "is not a relative path"
    if any(part in ("", ".", "..") for part in parts):
        return "has an empty, `.` or `..` part"
    if any(len(part.encode()) > 200 for part in parts) or len(parts) > 16:
        return "is too long"
    return None


def places(folder: Path, files: Collection[ManifestFile]) -> dict[str, Path]:
    """The file each artifact goes to, by its path; all strictly inside `folder`, and none inside another.

    Raises ProblemError("unsafe-path") that names every path that is not. Links already in `folder` are followed
    when judging, so that one that leads out is refused.

    Raises FolderTakenError where the folder holds files of another checkpoint.
    """
    root = folder.resolve()
    found: dict[str, Path] = {}
    offenders = []
    listed = [file.path for file in files]
    folders = {str(parent) for path in listed for parent in PurePosixPath(path).parents}
    for path in listed:
        fault = _fault(path)
        if fault is None and not (root / path).parent.resolve().is_relative_to(root):
            fault = f"leaves the folder {folder} by a link"
        if fault is None and (path in found or path in folders):
            fault = "is named twice"
        if fault is None:
            found[path] = root / path
        else:
            offenders.append(Offender(where=path, message=fault))
    if offenders:
        raise ProblemError("unsafe-path", "the service sent artifact paths that cannot be stored", offenders)
    if others := foreign(root, files):
        raise FolderTakenError(
            f"{folder} holds files of another checkpoint, which an engine would read too: {', '.join(others)}; "
            "choose an empty folder"
        )
    return found
