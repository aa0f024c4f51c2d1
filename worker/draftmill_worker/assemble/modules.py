"""Python modules of a checkpoint folder that its `auto_map`s name, with what they import from the same folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from draftmill_worker.checkpoint.auto_map import auto_map_files
from draftmill_worker.checkpoint.config import load_object
from draftmill_worker.checkpoint.manifest import inside
from draftmill_worker.pull.modules import needed_modules


class AutoMapModules(NamedTuple):
    files: tuple[str, ...]
    """Paths relative to the folder, sorted."""
    elsewhere: tuple[str, ...]
    """References to other repositories, such as `org/repo--modeling.Class`: nothing of them is in the folder."""


class FolderTree:
    """A folder's files. A link that leaves the folder raises `unsafe-path`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, path: str) -> bool:
        return (self._folder / path).is_file() and inside(self._folder, path).is_file()

    def size(self, path: str) -> int:
        return inside(self._folder, path).stat().st_size

    def read(self, path: str) -> bytes:
        return inside(self._folder, path).read_bytes()


def collect(folder: Path, configs: Iterable[str], repo: str | None = None) -> AutoMapModules:
    """Modules that the named JSON files of `folder` need. A reference into `repo` itself counts as local.

    Raises `unsafe-path`, `malformed-config` or `incomplete-checkpoint`. Nothing is imported or run.
    """
    tree = FolderTree(folder)
    documents = {name: tree.read(name) for name in configs}
    files = needed_modules(tree, documents, repo)
    foreign = [entry for name, data in documents.items() for entry in auto_map_files(load_object(data, name), name)[1]]
    elsewhere = {entry for entry in foreign if entry.rpartition("--")[0] != repo}
    return AutoMapModules(files, tuple(sorted(elsewhere)))
