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
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
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
        options, checkpoint = self._options(recipe), open_checkpoint(self.source)
        return make_plan(checkpoint, read_drafter(checkpoint, recipe.format, options), recipe.format, options)

    @contextmanager
    def built(self, recipe: Recipe) -> Iterator[Path]:
        """The variant's folder, for as long as the block runs."""
        folder = self.scratch / "candidate"
        folder.mkdir()
        try:
            self._build(recipe, folder)
            yield folder
        finally:
            shutil.rmtree(folder)

    def _build(self, recipe: Recipe, folder: Path) -> None:
        """Every file as a job over the same source makes it, so that what was measured is known again once sealed."""
        options, checkpoint = self._options(recipe), open_checkpoint(self.source)
        drafter = read_drafter(checkpoint, recipe.format, options)
        plan = make_plan(checkpoint, drafter, recipe.format, options)
        quantize(self.source, plan, folder, fsync=False)
        assemble(self.source, checkpoint, drafter, plan, folder, repo=self.repo, commit=self.commit)

    def _options(self, recipe: Recipe) -> QuantizeOptions:
        exclude = (*self.options.exclude, *patterns(recipe.kept))
        return self.options.model_copy(update={"exclude": exclude, "nvfp4_scale_search": recipe.scale_search})
