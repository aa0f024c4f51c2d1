"""Good variants pass every check, whatever family, format, layout and dtype."""

import time
from pathlib import Path

import pytest

from draftmill.formats import Format
from draftmill.plans import Family
from draftmill.reports import CheckStatus
from draftmill_worker.verify.checks import REGISTRY
from tests.unit.assemble.sources import FAMILIES
from tests.unit.verify.conftest import Good
from tests.unit.verify.variants import explained, with_status


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_format_passes_every_check(good: Good, cache: Path, family: Family, format: Format) -> None:
    report = good(f"{family}-{format}").verify(cache)
    assert report.passed, explained(report)
    assert [check.id for check in report.checks] == list(REGISTRY)
    whole_vocabulary = [] if family is Family.EAGLE3 else ["draft-vocabulary-maps"]
    assert with_status(report, CheckStatus.SKIP) == whole_vocabulary
    assert with_status(report, CheckStatus.WARN) == []
    assert next(check for check in report.checks if check.id == "engine-reads-config").evidence["cached"]


@pytest.mark.parametrize("name", ["sharded", "float32"])
def test_shards_and_casts_pass(good: Good, cache: Path, name: str) -> None:
    report = good(name).verify(cache)
    assert report.passed, explained(report)


def test_reference_scales_pass_with_a_warning(good: Good, cache: Path) -> None:
    report = good("reference").verify(cache)
    assert report.passed, explained(report)
    assert with_status(report, CheckStatus.WARN) == ["fused-uniform"]


def test_there_are_checks_enough_and_each_says_what_it_proves() -> None:
    assert len(REGISTRY) >= 20
    assert all(entry.proves and entry.reads for entry in REGISTRY.values())


def test_progress_counts_checks(good: Good, cache: Path) -> None:
    seen: list[tuple[int, int]] = []
    good("eagle3-fp8").verify(cache, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(number + 1, len(REGISTRY)) for number in range(len(REGISTRY))]


def test_without_identity_and_manifest_the_source_check_says_that_it_did_not_look(good: Good, cache: Path) -> None:
    report = good("eagle3-fp8").verify(cache, source_identity=None, source_manifest=None)
    assert with_status(report, CheckStatus.SKIP) == ["source-unchanged"]


def test_a_shallow_run_samples_and_passes(good: Good, cache: Path) -> None:
    report = good("eagle3-nvfp4").verify(cache, deep=False)
    assert report.passed, explained(report)
    evidence = {check.id: check.evidence for check in report.checks}
    assert evidence["scale-values"]["sampled"]
    assert evidence["source-unchanged"]["hashed"] == 0


def test_a_warm_run_is_fast(good: Good, cache: Path) -> None:
    """In seconds of CPU: the machine may be busy with other things."""
    case = good("dspark-nvfp4")
    case.verify(cache)
    seconds = []
    for _ in range(3):
        started = time.process_time()
        case.verify(cache)
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.25, seconds
