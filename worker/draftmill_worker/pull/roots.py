"""The rule that a local path lies under a root the operator allows, links followed."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.checkpoint import WEIGHTS_SUFFIX

_EXPORT = re.compile(r"exported-checkpoint-(\d{1,18})")


def resolve_folder(path: str | Path, roots: Sequence[Path]) -> Path:
    """The real path of a folder. Raises `path-not-allowed` before it tells whether anything is there."""
    real = Path(os.path.realpath(path))
    if not _under(real, roots):
        raise not_allowed([str(path)])
    if not os.path.isdir(real):  # noqa: PTH112 - False, not an exception, where a parent may not be searched
        message = "there is no such folder"
        raise ProblemError("path-not-found", f"{path}: {message}", [Offender(where=str(path), message=message)])
    return real


def newest_export(folder: Path) -> Path | None:
    """The `exported-checkpoint-<step>` of the highest step in a training output folder, by number.

    None when the folder has none, or has weights of its own and so is a checkpoint itself.
    """
    if any(path.name.endswith(WEIGHTS_SUFFIX) for path in folder.iterdir()):
        return None
    steps: dict[int, list[Path]] = {}
    for path in folder.iterdir():
        match = _EXPORT.fullmatch(path.name)
        if match is not None and path.is_dir():
            steps.setdefault(int(match[1]), []).append(path)
    if not steps:
        return None
    newest = sorted(steps[max(steps)])
    if len(newest) > 1:
        offenders = [Offender(where=path.name, message=f"is step {max(steps)} too") for path in newest]
        raise ProblemError("path-not-found", f"{folder}: which is the newest export cannot be told", offenders)
    return newest[0]


@contextmanager
def opened(path: Path, roots: Sequence[Path]) -> Iterator[int]:
    """Descriptor of a regular file under the roots, for reading.

    The file that was opened is judged, not the path: a link that is changed meanwhile leads nowhere else. Raises
    `path-not-allowed` for a file elsewhere, and for what is no regular file.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        real = Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 - not a path to follow
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not _under(real, roots):
            raise not_allowed([path.name])
        yield descriptor
    finally:
        os.close(descriptor)


def allowed_target(path: Path, roots: Sequence[Path]) -> bool:
    """Whether the path leads, over links, to something under the roots."""
    return _under(Path(os.path.realpath(path)), roots)


def not_allowed(paths: Sequence[str]) -> ProblemError:
    message = "does not lie under a folder that the operator allows (DRAFTMILL_ALLOWED_ROOTS), links followed"
    return ProblemError(
        "path-not-allowed", f"{paths[0]} {message}", [Offender(where=path, message=message) for path in paths]
    )


def _under(real: Path, roots: Sequence[Path]) -> bool:
    return any(real.is_relative_to(os.path.realpath(root)) for root in roots)
