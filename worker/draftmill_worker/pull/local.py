"""Takes a checkpoint folder of this machine into the sources folder, by copy or, when asked, by hard link."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from draftmill.digests import digest
from draftmill.problems import Offender, ProblemError
from draftmill.reports import Manifest
from draftmill_worker.checkpoint.checkpoint import WEIGHTS_SUFFIX, Checkpoint, open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.files import remove_tree
from draftmill_worker.pull.budget import check_budget, full_disk
from draftmill_worker.pull.folder import SourceFolder, scan
from draftmill_worker.pull.intake import Taken, check_unchanged, copy_file, hash_file, link_file
from draftmill_worker.pull.listing import check_listing
from draftmill_worker.pull.roots import newest_export, resolve_folder
from draftmill_worker.pull.settings import Limits, LocalSettings
from draftmill_worker.pull.store import Progress, Pulled, Slot
from draftmill_worker.pull.survey import survey
from draftmill_worker.pull.tally import Tally

__all__ = ["LocalSettings", "pull_path", "read_local"]

Check = Callable[[Checkpoint], object]
Take = Callable[[str, Callable[[int], None]], Taken]


def pull_path(
    path: str | Path,
    allowed_roots: Sequence[Path],
    sources_dir: Path,
    settings: LocalSettings,
    progress: Progress | None = None,
    *,
    check: Check = detect,
) -> Pulled:
    """The checkpoint at `path` in `sources_dir/path-<digest of its manifest>`.

    A training output folder stands for its newest `exported-checkpoint-<step>`; when that one is no usable checkpoint
    the problem names it, and no older one is taken instead. Files are copied; `settings.link` hard-links weight files
    where the volume allows it. Raises ProblemError, `source-changed` when files change meanwhile.
    """
    sources_dir.mkdir(parents=True, exist_ok=True)
    with _source(path, allowed_roots) as source:
        check(_open(source, settings))
        modules = survey(source, list(source.sizes), None)
        pull = _Pull(source, tuple(sorted({*source.sizes, *modules})), sources_dir, settings, progress, check)
        return pull.find() or pull.bring()


def read_local(path: str | Path, allowed_roots: Sequence[Path], limits: Limits) -> Checkpoint:
    """The checkpoint that `pull_path` would take, from its headers; nothing is copied."""
    with _source(path, allowed_roots) as source:
        survey(source, list(source.sizes), None)
        return _open(source, limits)


@contextmanager
def _source(path: str | Path, roots: Sequence[Path]) -> Iterator[SourceFolder]:
    """The folder that `path` stands for. Problems within the block name it where it is a training output's export.

    Files of it that are removed meanwhile become `source-changed`.
    """
    folder = resolve_folder(path, roots)
    with _still_there(folder):
        export = newest_export(folder)
    real = folder if export is None else resolve_folder(export, roots)
    try:
        with _still_there(real):
            yield scan(real, roots)
    except ProblemError as error:
        if export is None:
            raise
        problem = error.problem
        detail = f"{export.name}, the newest export in {path}: {problem.detail}"
        raise ProblemError(problem.slug, detail, problem.offenders) from error


@contextmanager
def _still_there(folder: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        gone = Path(os.fsdecode(error.filename or ""))
        if not gone.is_relative_to(folder):
            raise
        offender = Offender(
            where=gone.name if gone == folder else str(gone.relative_to(folder)), message="was removed meanwhile"
        )
        raise ProblemError("source-changed", f"{gone} {offender.message}", [offender]) from error


def _open(source: SourceFolder, limits: Limits) -> Checkpoint:
    check_listing(str(source.path), source.sizes, source.siblings, limits)
    return open_checkpoint(source.path)


@dataclass(frozen=True)
class _Pull:
    source: SourceFolder
    names: tuple[str, ...]
    sources_dir: Path
    settings: LocalSettings
    progress: Progress | None
    check: Check

    def find(self) -> Pulled | None:
        """The same bytes, when they were pulled before: the source is read, nothing is written."""
        sizes = {name: self.source.size(name) for name in self.names}
        if not any(_sizes(path) == sizes for path in self.sources_dir.glob("path-*.manifest.json")):
            return None
        manifest = _manifest(self._take(lambda name, advance: hash_file(self.source, name, advance)))
        slot = self._slot(manifest)
        with slot.locked():
            return self._pulled(slot, manifest) if slot.sealed() == manifest else None

    def bring(self) -> Pulled:
        """Bring the files into a folder of this source's own, then move it to where its manifest says."""
        incoming = Slot(self.sources_dir, f"incoming-{digest(str(self.source.path))[:16]}")
        with incoming.locked(), full_disk(str(self.source.path)):
            remove_tree(incoming.partial)
            check_budget(self.sources_dir, self._bytes_to_write(), 0, self.settings)
            incoming.partial.mkdir()
            try:
                taken = self._take(self._copy_or_link(incoming.partial))
                self.check(open_checkpoint(incoming.partial))
                return self._seal(incoming.partial, taken)
            finally:
                remove_tree(incoming.partial)

    def _seal(self, folder: Path, taken: Sequence[Taken]) -> Pulled:
        manifest = _manifest(taken)
        slot = self._slot(manifest)
        with slot.locked():
            if slot.sealed() == manifest:
                return self._pulled(slot, manifest)
            slot.discard()
            remove_tree(slot.partial)
            folder.rename(slot.partial)
            slot.seal(manifest, linked=[item.entry.path for item in taken if item.linked])
        notes = tuple(item.note for item in taken if item.note is not None)
        return Pulled(slot.folder, None, None, manifest, cached=False, notes=notes)

    def _take(self, take: Take) -> list[Taken]:
        tally = Tally(sum(self.source.size(name) for name in self.names), self.progress)
        taken = [take(name, tally.add) for name in self.names]
        check_unchanged(self.source, taken)
        return taken

    def _copy_or_link(self, folder: Path) -> Take:
        def take(name: str, advance: Callable[[int], None]) -> Taken:
            if self.settings.link and name.endswith(WEIGHTS_SUFFIX):
                return link_file(self.source, name, folder, advance)
            return copy_file(self.source, name, folder, advance)

        return take

    def _bytes_to_write(self) -> int:
        volume = self.sources_dir.stat().st_dev
        return sum(
            self.source.size(name)
            for name in self.names
            if not (self.settings.link and name.endswith(WEIGHTS_SUFFIX) and self.source.volume(name) == volume)
        )

    def _slot(self, manifest: Manifest) -> Slot:
        return Slot(self.sources_dir, f"path-{digest(manifest)}")

    def _pulled(self, slot: Slot, manifest: Manifest) -> Pulled:
        return Pulled(slot.folder, None, None, manifest, cached=True)


def _manifest(taken: Sequence[Taken]) -> Manifest:
    return Manifest(files=tuple(item.entry for item in taken))


def _sizes(manifest_path: Path) -> dict[str, int]:
    try:
        manifest = Manifest.model_validate_json(manifest_path.read_bytes())
    except ValidationError:
        return {}
    return {entry.path: entry.size for entry in manifest.files}
