"""Which candidates the search makes, and which it chooses."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

from draftmill.benchmarks import Benchmark, Interval
from draftmill.choices import AUTO, Auto, Candidate, Comparison, Sensitivity
from draftmill.formats import Format
from draftmill.jobs import JobSpec, QuantizeOptions, RepoSource
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.choose import search
from draftmill_worker.choose.choose import Search
from draftmill_worker.choose.search import Weighed
from draftmill_worker.choose.units import Unit, patterns, units
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.stage import Level
from draftmill_worker.stage import Unit as ProgressUnit


class Silent:
    def progress(self, done: int, total: int, unit: ProgressUnit) -> None:
        assert done <= total

    def log(self, level: Level, message: str) -> None:
        pass


def _interval(value: float, width: float = 0.02) -> Interval:
    return Interval(value=value, low=value - width, high=value + width, confidence=0.95)


def _weighed(name: str, saved: int, error: float, change: float | None = None) -> Weighed:
    unit = Unit(name, (f"{name}.weight",), saved)
    interval = None if change is None else _interval(change)
    return Weighed(
        unit,
        Sensitivity(unit=name, weights=unit.weights, saved_bytes=saved, weight_error=error, change=interval),
    )


def _candidate(format: Format, size: int, error: float = 0.1, al: float | None = None, change: float = 0) -> Candidate:
    interval = None if al is None else _interval(change)
    return Candidate(format=format, variant_bytes=size, weight_error=error, al=al, change=interval)


def _names(ranked: Sequence[Weighed]) -> list[str]:
    return [one.unit.name for one in ranked]


def test_the_costliest_by_byte_comes_first_and_a_gain_costs_nothing() -> None:
    ranked = search.rank(
        [
            _weighed("large", 1000, 0.1, -0.02),
            _weighed("small", 100, 0.1, -0.01),
            _weighed("gain", 10, 0.9, +0.05),
            _weighed("unmeasured", 1, 0.9),
        ]
    )
    assert _names(ranked) == ["small", "large", "gain", "unmeasured"]
    assert _names(search.rank([_weighed("a", 100, 0.1), _weighed("b", 100, 0.2)])) == ["b", "a"]


def test_prefixes_stop_at_the_size_and_leave_something_to_quantize() -> None:
    ranked = [_weighed(name, 10, 0.1) for name in "abc"]
    assert [len(kept) for kept in search.prefixes(ranked, lambda _: True)] == [1, 2]
    assert [len(kept) for kept in search.prefixes(ranked, lambda kept: len(kept) < 2)] == [1]


def test_a_prefix_leaves_out_what_does_not_fit_beside_it() -> None:
    ranked = [_weighed(name, saved, 0.1) for name, saved in (("a", 30), ("b", 100), ("c", 20), ("d", 10))]
    found = search.prefixes(ranked, lambda kept: sum(unit.saved_bytes for unit in kept) <= 50)
    assert [[unit.name for unit in kept] for kept in found] == [["a"], ["a", "c"]]


@pytest.mark.parametrize(
    ("size", "low", "high", "said"),
    [
        (40, 0.01, 0.2, Comparison.BEATS),
        (41, 0.01, 0.2, Comparison.MORE_FOR_MORE),
        (40, -0.01, 0.2, Comparison.NOT_SHOWN),
        (40, 0.0, 0.2, Comparison.NOT_SHOWN),
        (40, -0.2, -0.01, Comparison.WORSE),
    ],
)
def test_the_interval_alone_says_whether_it_beats(size: int, low: float, high: float, said: Comparison) -> None:
    gain = Interval(value=(low + high) / 2, low=low, high=high, confidence=0.95)
    baseline = _candidate(Format.NVFP4, 40)
    assert search.says(_candidate(Format.W4A16_NVFP4, size), baseline, gain) is said
    assert search.says(baseline, baseline, gain) is Comparison.SAME


def test_what_is_chosen() -> None:
    small = _candidate(Format.NVFP4, 40, 0.2, 2.0, -0.10)
    middle = _candidate(Format.W4A16_NVFP4, 41, 0.2, 2.3, -0.04)
    large = _candidate(Format.FP8, 60, 0.1, 2.4, -0.01)
    every = [small, middle, large]
    assert search.pick(Auto(max_size=1), every, measured=True)[0] == 2
    assert search.pick(Auto(max_al_drop=0.07), every, measured=True)[0] == 1
    assert search.pick(Auto(max_size=1), every, measured=False)[0] == 2
    with pytest.raises(ProblemError) as caught:
        search.pick(Auto(max_al_drop=0.001), every, measured=True)
    assert caught.value.problem.slug == "budget-unreachable"
    assert len(caught.value.problem.offenders) == 3


def test_under_a_size_the_largest_are_measured_otherwise_the_smallest() -> None:
    every = [_candidate(Format.FP8, size) for size in (1, 2, 3)]
    assert [one.variant_bytes for one in search.in_turn(Auto(max_size=1), every)] == [3, 2, 1]
    assert [one.variant_bytes for one in search.in_turn(Auto(max_al_drop=0.1), every)] == [1, 2, 3]


def test_units_are_what_engines_fuse_and_patterns_keep_just_them(models: Path) -> None:
    checkpoint = open_checkpoint(models / "eagle3")
    drafter = detect(checkpoint)
    plan = make_plan(checkpoint, drafter, Format.NVFP4, QuantizeOptions())
    found = units(plan)
    assert {len(unit.weights) for unit in found} == {1, 2, 3}
    kept = make_plan(checkpoint, drafter, Format.NVFP4, QuantizeOptions(exclude=patterns(found[:1])))
    assert units(kept) == found[1:]
    assert kept.variant_bytes - plan.variant_bytes == found[0].saved_bytes


def test_without_an_engine_weight_error_decides(models: Path, tmp_path: Path) -> None:
    auto = Auto(formats=(Format.NVFP4, Format.FP8_PC_PT), max_size=0.59)
    choice = Search(models / "eagle3", QuantizeOptions(), auto, None, tmp_path, Silent()).run()
    assert choice.base is Format.NVFP4
    assert choice.choice.format is Format.NVFP4
    assert choice.choice.kept
    assert choice.choice.weight_error == min(candidate.weight_error for candidate in choice.candidates)
    assert all(candidate.variant_bytes <= 0.59 * choice.source_bytes for candidate in choice.candidates)
    assert not list(tmp_path.iterdir())


def test_a_budget_and_auto_belong_together() -> None:
    source = RepoSource(repo="a/b")
    with pytest.raises(ValidationError, match="max_size"):
        Auto()
    with pytest.raises(ValidationError, match="belong together"):
        JobSpec(source=source, format=AUTO)
    with pytest.raises(ValidationError, match="belong together"):
        JobSpec(source=source, format=Format.FP8, auto=Auto(max_size=0.5))
    with pytest.raises(ValidationError, match="needs a benchmark"):
        JobSpec(source=source, format=AUTO, auto=Auto(max_al_drop=0.1))
    benchmark = Benchmark(target=RepoSource(repo="a/target"), num_speculative_tokens=3)
    assert JobSpec(source=source, format=AUTO, auto=Auto(max_al_drop=0.1), benchmark=benchmark).auto is not None
