"""Good variants pass every check, whatever family, format, layout and dtype."""

import json
import time
from pathlib import Path
from statistics import fmean

import pytest
from tokenizers import Tokenizer

from draftmill.formats import Format
from draftmill.plans import Family, ScaleSearch
from draftmill.reports import CheckStatus
from draftmill_worker.checkpoint.identity import fingerprint
from draftmill_worker.choose.errors import squares
from draftmill_worker.quantize.stream import quantize
from draftmill_worker.variants import summarize
from draftmill_worker.verify.checks import REGISTRY
from tests.unit.assemble.sources import FAMILIES
from tests.unit.verify.conftest import MTP, SPECIAL, Good
from tests.unit.verify.variants import Case, explained, with_status


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


WARNINGS = {
    "reference-fp8": ["fused-uniform"],
    "reference-nvfp4": ["fused-uniform"],
    "float16": ["dtype-declared"],
    "kept": ["dtype-declared"],
}


@pytest.mark.parametrize("name", SPECIAL)
def test_other_layouts_options_and_weights_pass(good: Good, cache: Path, name: str) -> None:
    report = good(name).verify(cache)
    assert report.passed, explained(report)
    assert with_status(report, CheckStatus.WARN) == WARNINGS.get(name, [])
    evidence = {check.id: check.evidence for check in report.checks}
    assert evidence["engine-reads-config"]["cached"]
    assert evidence["modelopt-parity"]["bytes"] > 0


@pytest.mark.parametrize("name", MTP)
def test_c17_targets_with_their_block_pass(good: Good, cache: Path, name: str) -> None:
    case = good(name)
    report = case.verify(cache)
    assert report.passed, explained(report)
    assert with_status(report, CheckStatus.SKIP) == ["draft-vocabulary-maps"]
    evidence = {check.id: check.evidence for check in report.checks}
    assert evidence["engine-reads-config"]["cached"]
    links = (len(case.plan.untouched), 0) if MTP[name].get("link") else (0, len(case.plan.untouched))
    assert (evidence["whole-files-identical"]["linked"], evidence["whole-files-identical"]["copied"]) == links
    assert evidence["target-untouched"]["target"] > evidence["target-untouched"]["block"]


def test_a_scale_search_is_measured_against_plain_max(good: Good, cache: Path, tmp_path: Path) -> None:
    """By verify's own arithmetic; the quantizer's figures and those of plain variants are the same."""
    case, plain = good("searched"), good("eagle3-nvfp4")
    report = case.verify(cache)
    evidence = next(check for check in report.checks if check.id == "dequantized-error").evidence
    (tmp_path / "again").mkdir()
    reported = quantize(case.source, case.plan, tmp_path / "again", fsync=False).scale_search
    assert reported is not None
    assert evidence["relative_mse"] == pytest.approx(reported.relative_mse, rel=1e-5)
    assert evidence["plain_relative_mse"] == pytest.approx(reported.plain_relative_mse, rel=1e-5)
    assert summarize(case.plan, report).scale_search == ScaleSearch(
        relative_mse=evidence["relative_mse"], plain_relative_mse=evidence["plain_relative_mse"]
    )
    squared = squares(plain.source, plain.variant, plain.plan)
    assert evidence["plain_relative_mse"] == pytest.approx(fmean(e / w for e, w in squared.values()), rel=1e-5)
    assert evidence["relative_mse"] < 0.85 * evidence["plain_relative_mse"]
    assert summarize(plain.plan, plain.verify(cache)).scale_search is None


def test_a_weight_that_was_zero_may_stay_zero(good: Good, cache: Path) -> None:
    evidence = {check.id: check.evidence for check in good("zero-weight").verify(cache).checks}
    assert evidence["codes-not-zero"]["zero_in_source"] == 1


def test_a_token_without_an_embedding_is_a_warning(good: Good, cache: Path, tmp_path: Path) -> None:
    """The tokenizer's words all lie inside the vocabulary; one of its added tokens does not."""
    case = good("eagle3-fp8").copy(tmp_path / "case")
    vocab = json.loads((case.source / "config.json").read_text())["vocab_size"]
    for folder in (case.source, case.variant):
        path = folder / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.add_tokens([f"filler{number}" for number in range(vocab - tokenizer.get_vocab_size())])
        tokenizer.save(str(path))
    assert with_status(case.verify(cache), CheckStatus.WARN) == []
    for folder in (case.source, case.variant):
        tokenizer.add_special_tokens(["<|beyond|>"])
        tokenizer.save(str(folder / "tokenizer.json"))
    report = case.verify(cache)
    assert report.passed, explained(report)
    assert with_status(report, CheckStatus.WARN) == ["tokenizer-encodes"]
    [offender] = next(check for check in report.checks if check.id == "tokenizer-encodes").offenders
    assert (offender.where, offender.value) == ("tokenizer.json: '<|beyond|>'", vocab)


def test_relative_folders_with_names_that_are_words(
    good: Good, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = good("eagle3-fp8").copy(tmp_path / "case")
    monkeypatch.chdir(case.root)
    report = Case(Path(), case.plan).verify(cache)
    assert report.passed, explained(report)


def test_nothing_is_written(good: Good, cache: Path) -> None:
    case = good("eagle3-nvfp4")
    before = fingerprint(case.root)
    case.verify(cache)
    assert fingerprint(case.root) == before


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
