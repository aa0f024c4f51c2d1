"""The search with an engine: how many boots it takes, and what it is compared with.

The boots are a table of counts; that engines count is shown by tests/e2e/test_auto.py.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from draftmill.benchmarks import Arm, Benchmark
from draftmill.choices import Auto, Choice, Comparison
from draftmill.formats import Format
from draftmill.jobs import PathSource, QuantizeOptions
from draftmill.plans import Fate, Plan
from draftmill_worker.bench import statistics
from draftmill_worker.bench.arms import Place
from draftmill_worker.bench.subject import Directory
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.choose.choose import Search
from draftmill_worker.choose.engine import Engine
from draftmill_worker.receipts.archive import ArchiveWriter
from tests.unit.bench.arms import arm, counts
from tests.unit.choose.test_search import Silent
from tests.unit.receipts.heads import MemoryHeads

DRAFTS = [counts(20, 15), counts(20, 12), counts(20, 18), counts(20, 9)]


@dataclass(frozen=True)
class Table(Engine):
    """Accepted tokens of the first prompt by format; each kept weight adds one."""

    accepted: dict[Format, int] = field(default_factory=dict)
    booted: list[Plan] = field(default_factory=list)

    def check(self, folder: Path, plan: Plan) -> None:
        pass

    def control(self, folder: Path, plan: Plan) -> Arm:
        return arm(DRAFTS)

    def boot(self, folder: Path, plan: Plan) -> Arm:
        self.booted.append(plan)
        quantized = sum(tensor.fate is Fate.QUANTIZED for tensor in plan.tensors)
        return arm([counts(20, self.accepted[plan.format] - quantized), *DRAFTS[1:]])


def _engine(models: Path, scratch: Path, accepted: dict[Format, int]) -> Table:
    drafter = Directory(models / "eagle3", make_manifest(models / "eagle3"), None, None)
    benchmark = Benchmark(target=PathSource(path=str(models / "target")), num_speculative_tokens=3)
    place = Place(scratch, scratch, ArchiveWriter(scratch / "receipts", "t", MemoryHeads()), 1.0)
    return Table(drafter, drafter, benchmark, None, (), place, Silent(), accepted=accepted)


def _search(models: Path, scratch: Path, auto: Auto, accepted: dict[Format, int]) -> tuple[Choice, Table]:
    engine = _engine(models, scratch, accepted)
    return Search(models / "eagle3", QuantizeOptions(), auto, engine, scratch, Silent()).run(), engine


@pytest.mark.parametrize("boots", [2, 3, 5, 12])
def test_no_more_boots_than_asked(models: Path, tmp_path: Path, boots: int) -> None:
    auto = Auto(formats=(Format.NVFP4, Format.FP8), max_size=1, boots=boots)
    choice, engine = _search(models, tmp_path, auto, {Format.NVFP4: 12, Format.FP8: 14})
    assert len(engine.booted) <= boots
    assert choice.choice.al is not None
    assert choice.baseline is not None


def test_the_baseline_is_measured_where_the_budget_leaves_it_out(models: Path, tmp_path: Path) -> None:
    auto = Auto(formats=(Format.NVFP4, Format.INT4_G128), max_size=0.40)
    choice, engine = _search(models, tmp_path, auto, {Format.NVFP4: 12, Format.INT4_G128: 9})
    assert [one.format for one in choice.candidates] == [Format.INT4_G128]
    assert not choice.candidates[0].kept
    assert choice.baseline is not None
    assert choice.baseline.variant.format is Format.NVFP4
    assert choice.baseline.variant.variant_bytes > 0.40 * choice.source_bytes
    assert choice.baseline.says is Comparison.NOT_SHOWN
    # No module fits beside the others, so that none is booted alone.
    assert [plan.format for plan in engine.booted] == [Format.NVFP4, Format.INT4_G128]


def test_the_interval_holds_for_all_that_were_compared(models: Path, tmp_path: Path) -> None:
    auto = Auto(formats=(Format.NVFP4, Format.W4A16_NVFP4, Format.INT4_G128), max_size=0.42)
    accepted = {Format.NVFP4: 9, Format.W4A16_NVFP4: 14, Format.INT4_G128: 10}
    choice, engine = _search(models, tmp_path, auto, accepted)
    baseline = choice.baseline
    assert choice.choice.format is Format.W4A16_NVFP4
    assert baseline is not None
    measured = [one for one in choice.candidates if one.al is not None]
    assert len({(one.format, one.scale_search) for one in measured}) == len(measured) == 5
    assert baseline.compared == 4
    assert baseline.gain.confidence == pytest.approx(1 - 0.05 / 4)
    plans = {plan.format: plan for plan in engine.booted}
    arms = [engine.boot(tmp_path, plans[one]) for one in (Format.W4A16_NVFP4, Format.NVFP4)]
    assert baseline.gain == statistics.length_difference(arms[0], arms[1], baseline.gain.confidence)


def test_searched_scales_are_weighed_and_tried_beside_plain_ones(models: Path, tmp_path: Path) -> None:
    auto = Auto(formats=(Format.NVFP4,), max_size=0.42)
    choice = Search(models / "eagle3", QuantizeOptions(), auto, None, tmp_path, Silent()).run()
    plain, searched = choice.candidates
    assert (plain.scale_search, searched.scale_search) == (False, True)
    assert plain.variant_bytes == searched.variant_bytes
    assert searched.weight_error < plain.weight_error
    assert choice.choice == searched
    reference = QuantizeOptions(scales="reference")
    assert len(Search(models / "eagle3", reference, auto, None, tmp_path, Silent()).run().candidates) == 1


def test_without_nvfp4_there_is_no_baseline(models: Path, tmp_path: Path) -> None:
    auto = Auto(formats=(Format.INT4_G128,), max_size=0.42)
    choice, _ = _search(models, tmp_path, auto, {Format.INT4_G128: 9})
    assert choice.baseline is None
    assert choice.choice.al_interval is not None
