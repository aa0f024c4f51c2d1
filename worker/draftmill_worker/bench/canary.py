"""What this engine can do: every family in every format on the pair that ships, measured."""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from draftmill.archive.layout import RECEIPTS
from draftmill.benchmarks import Arm, ArmName, Benchmark, PromptSet
from draftmill.canary import Row, Table
from draftmill.formats import FORMATS, Format
from draftmill.jobs import PathSource, QuantizeOptions
from draftmill.plans import Family, Plan
from draftmill.problems import ProblemError
from draftmill_worker.bench import prompts, statistics
from draftmill_worker.bench.arm import compared
from draftmill_worker.bench.arms import Arms, Place
from draftmill_worker.bench.heads import FileHeads
from draftmill_worker.bench.subject import Directory, Subject
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.files import write_atomic
from draftmill_worker.mill import Switches, mill
from draftmill_worker.receipts.archive import ArchiveWriter
from draftmill_worker.receipts.versions import engine_build
from draftmill_worker.stage import Reporter
from draftmill_worker.variants import PLAN

DRAFTED = {Family.DRAFT_MODEL: 3, Family.EAGLE3: 3, Family.DFLASH: 3, Family.DSPARK: 4, Family.MTP: 3}
"""Families of the table, each with its draft tokens: dspark drafts its block."""
BF16 = "bf16"
WRITER = "canary"
BOOT_SECONDS = 900.0
# The engine came up, and what it did then was wrong.
_AFTER_LOADING = frozenset({"receipt-invalid", "no-drafts", "bench-failed", "prompts-invalid"})


@dataclass(frozen=True)
class Canary:
    pair: Path
    """Folder with `target` and one folder per family; that of mtp holds its own target."""
    data_dir: Path
    prompt_set: PromptSet
    report: Reporter

    def run(self, families: Sequence[Family], formats: Sequence[Format]) -> Table:
        """Measured, or taken from before where everything is the same. The table is kept in `data_dir/canary/`."""
        chosen = prompts.load(self.prompt_set, None)
        with tempfile.TemporaryDirectory(prefix="draftmill-canary-") as scratch:
            rows: list[Row] = []
            changes: dict[str, tuple[float, float, float]] = {}
            problems: dict[str, str] = {}
            for family in families:
                one = FamilyRows(self, family, chosen, Path(scratch))
                rows += [one.row(format) for format in (None, *formats)]
                changes |= one.changes
                problems |= one.problems
        table = Table(
            made_at=datetime.now(UTC),
            engine=rows[0].engine,
            prompts_sha256=prompts.sha256(chosen, self.prompt_set),
            prompts=len(chosen),
            max_tokens=self.prompt_set.max_tokens,
            rows=tuple(rows),
            changes=changes,
            problems=problems,
        )
        folder = self.data_dir / "canary"
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / f"{table.made_at:%Y%m%dT%H%M%SZ}.json", table.model_dump_json(indent=1).encode())
        return table


class FamilyRows:
    def __init__(self, canary: Canary, family: Family, chosen: tuple[prompts.Prompt, ...], scratch: Path) -> None:
        self._canary = canary
        self._family = family
        self._chosen = chosen
        self._scratch = scratch
        self._control: Arm | None = None
        self.changes: dict[str, tuple[float, float, float]] = {}
        self.problems: dict[str, str] = {}

    def row(self, format: Format | None) -> Row:
        name = BF16 if format is None else format.value
        try:
            arms = self._arms(format or next(iter(FORMATS)))
        except ProblemError as refusal:
            self.problems[f"{self._family} {name}"] = str(refusal)
            return Row(family=self._family, format=name, loads=False, runs=False, engine=engine_build())
        try:
            none = arms.run(ArmName.NONE)[0]
            if format is None:
                self._control = arms.run(ArmName.CONTROL)[0]
            arm = compared(self._control if format is None else arms.run(ArmName.VARIANT)[0], none)  # type: ignore[arg-type]
        except ProblemError as error:
            self.problems[f"{self._family} {name}"] = str(error)
            loads = error.problem.slug in _AFTER_LOADING
            return Row(family=self._family, format=name, loads=loads, runs=False, engine=arms.engine)
        return self._measured(name, arm, arms.engine)

    def _measured(self, name: str, arm: Arm, engine: str) -> Row:
        low, high = statistics.length_interval(arm, 0.95)
        if self._control is not None and name != BF16:
            change = statistics.relative_change(arm, self._control, 0.95)
            self.changes[f"{self._family} {name}"] = (change.value, change.low, change.high)
        if arm.parts_from_none:
            self.problems[f"{self._family} {name}"] = f"output differs for {', '.join(arm.parts_from_none)}"
        return Row(
            family=self._family,
            format=name,
            loads=True,
            runs=not arm.parts_from_none,
            al=arm.al,
            al_low=low,
            al_high=high,
            control_al=None if self._control is None else self._control.al,
            emulated=arm.emulated,
            engine=engine,
            receipt=arm.receipt,
        )

    def _arms(self, format: Format) -> Arms:
        canary = self._canary
        source = canary.pair / self._family.value
        # An MTP block is served with the target that it lies in.
        target = source if self._family is Family.MTP else canary.pair / "target"
        variant = self._scratch / f"{self._family}-{format}"
        if not variant.exists():
            switches = Switches(verify=False, fsync=False)
            mill(source, variant, format, QuantizeOptions(), switches=switches, progress=lambda *_: None)
        benchmark = Benchmark(
            target=PathSource(path=str(target.absolute())),
            num_speculative_tokens=DRAFTED[self._family],
            prompts=canary.prompt_set,
        )
        plan = Plan.model_validate_json((variant / PLAN).read_bytes())
        subject = Subject(_directory(target), _directory(source), _directory(variant), plan)
        heads = FileHeads(canary.data_dir / "heads.json")
        archive = ArchiveWriter(canary.data_dir / RECEIPTS, WRITER, heads)
        scratch = Path(tempfile.mkdtemp(dir=self._scratch))
        place = Place(canary.data_dir, scratch, archive, BOOT_SECONDS)
        sha256 = prompts.sha256(self._chosen, canary.prompt_set)
        return Arms(subject, benchmark, self._chosen, sha256, place, canary.report, total=len(self._chosen))


def _directory(folder: Path) -> Directory:
    return Directory(folder, make_manifest(folder), None, None)


def lines(rows: Iterable[Row]) -> list[str]:
    """The table as Markdown."""
    head = ["family", "format", "loads", "runs", "AL", "95% interval", "bf16 AL", "kernels"]
    body = [
        [
            row.family,
            row.format,
            _yes(row.loads),
            _yes(row.runs),
            "-" if row.al is None else f"{row.al:.3f}",
            "-" if row.al_low is None or row.al_high is None else f"{row.al_low:.3f} to {row.al_high:.3f}",
            "-" if row.control_al is None else f"{row.control_al:.3f}",
            {True: "emulated", False: "native", None: "-"}[row.emulated],
        ]
        for row in rows
    ]
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body)]


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"
