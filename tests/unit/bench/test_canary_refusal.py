"""A format that a family is refused is a row of the canary's table, with its reason."""

from pathlib import Path

from draftmill.benchmarks import PromptSet
from draftmill.formats import Format
from draftmill.plans import Family
from draftmill_worker.bench.canary import Canary, FamilyRows
from tests.unit.choose.test_search import Silent


def test_a_refused_format_does_not_end_the_run(models: Path, tmp_path: Path) -> None:
    rows = FamilyRows(Canary(models, tmp_path, PromptSet(limit=1), Silent()), Family.MTP, (), tmp_path)
    row = rows.row(Format.INT4_G128)
    assert (row.family, row.format, row.loads, row.runs, row.al) == ("mtp", "int4_g128", False, False, None)
    assert "family-not-quantizable" in rows.problems["mtp int4_g128"]
