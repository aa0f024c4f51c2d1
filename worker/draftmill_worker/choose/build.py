"""Plans and variants of candidates, each variant for as long as it is needed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from draftmill.formats import SCALE_SEARCH_FORMATS, Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Plan
from draftmill_worker.assemble.assemble import assemble
from draftmill_worker.checkpoint.checkpoint import Checkpoint, open_checkpoint
from draftmill_worker.checkpoint.drafter import Drafter
from draftmill_worker.choose.units import Unit, patterns
from draftmill_worker.quantize.existing import read_drafter
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.quantize.stream import quantize


@dataclass(frozen=True)
class Recipe:
    format: Format
    kept: tuple[Unit, ...] = ()
    scale_search: bool = False

    def __str__(self) -> str:
        kept = f", {', '.join(unit.name for unit in self.kept)} kept" if self.kept else ""
        return f"{self.format}{', scale search' if self.scale_search else ''}{kept}"


@dataclass(frozen=True)
class Builder:
    source: Path
    options: QuantizeOptions
    scratch: Path
    repo: str | None = None
    commit: str | None = None

    @property
    def searches(self) -> frozenset[Format]:
        """Formats whose block scales can be searched."""
        return frozenset(SCALE_SEARCH_FORMATS) if self.options.scales == "fused" else frozenset()

    def plan(self, recipe: Recipe) -> Plan:
        """Raises what makes the drafter have no such variant."""
        return self._planned(recipe)[2]

    @contextmanager
    def built(self, recipe: Recipe) -> Iterator[tuple[Path, Plan]]:
        """The variant's folder, for as long as the block runs, and what it was made by.

        Every file is as a job over the same source makes it, so that what was measured is known again once sealed.
        """
        checkpoint, drafter, plan = self._planned(recipe)
        folder = self.scratch / "candidate"
        folder.mkdir()
        try:
            quantize(self.source, plan, folder, fsync=False)
            assemble(self.source, checkpoint, drafter, plan, folder, repo=self.repo, commit=self.commit)
            yield folder, plan
        finally:
            shutil.rmtree(folder)

    def _planned(self, recipe: Recipe) -> tuple[Checkpoint, Drafter, Plan]:
        options, checkpoint = self._options(recipe), open_checkpoint(self.source)
        drafter = read_drafter(checkpoint, recipe.format, options)
        return checkpoint, drafter, make_plan(checkpoint, drafter, recipe.format, options)

    def _options(self, recipe: Recipe) -> QuantizeOptions:
        exclude = (*self.options.exclude, *patterns(recipe.kept))
        return self.options.model_copy(update={"exclude": exclude, "nvfp4_scale_search": recipe.scale_search})
