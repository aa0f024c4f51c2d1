"""Plans and variants of candidates, each variant for as long as it is needed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Plan
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.choose.units import Unit, patterns
from draftmill_worker.mill import Switches, mill
from draftmill_worker.quantize.existing import read_drafter
from draftmill_worker.quantize.plan import make_plan


@dataclass(frozen=True)
class Builder:
    source: Path
    options: QuantizeOptions
    scratch: Path

    def plan(self, format: Format, kept: tuple[Unit, ...] = ()) -> Plan:
        """Raises what makes the drafter have no such variant."""
        options, checkpoint = self._options(kept), open_checkpoint(self.source)
        return make_plan(checkpoint, read_drafter(checkpoint, format, options), format, options)

    @contextmanager
    def built(self, format: Format, kept: tuple[Unit, ...] = ()) -> Iterator[Path]:
        """The variant's folder, for as long as the block runs."""
        folder = self.scratch / "candidate"
        switches = Switches(verify=False, fsync=False)
        mill(self.source, folder, format, self._options(kept), switches=switches, progress=lambda *_: None)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)

    def _options(self, kept: tuple[Unit, ...]) -> QuantizeOptions:
        return self.options.model_copy(update={"exclude": (*self.options.exclude, *patterns(kept))})
