"""Intervals against what can be worked out without them."""

import numpy as np
import pytest

from draftmill.benchmarks import GroupResult
from draftmill.problems import ProblemError
from draftmill_worker.bench import statistics
from tests.unit.bench.arms import arm, counts

GENERATOR = np.random.default_rng(3)


def _noisy(rate: float, prompts: int, drafts: int = 40) -> list[int]:
    return [int(value) for value in GENERATOR.binomial(drafts, rate, prompts)]


def test_equal_arms_have_no_change_and_no_width() -> None:
    same = arm([counts(10, value) for value in _noisy(0.6, 30, 10)])
    change = statistics.relative_change(same, same, 0.95)
    assert (change.value, change.low, change.high) == (0.0, 0.0, 0.0)


def test_a_fall_that_is_the_same_for_every_prompt_has_no_width() -> None:
    control, variant = arm([counts(10, 8)] * 20), arm([counts(10, 6)] * 20)
    change = statistics.relative_change(variant, control, 0.95)
    assert (change.value, change.low, change.high) == pytest.approx((-0.25, -0.25, -0.25))


def test_the_change_is_a_ratio_of_sums() -> None:
    control, variant = arm([counts(100, 50), counts(10, 10)]), arm([counts(100, 50), counts(20, 10)])
    value = statistics.relative_change(variant, control, 0.95).value
    assert value == pytest.approx((60 / 120) / (60 / 110) - 1)


def test_the_interval_covers_as_often_as_it_says() -> None:
    covered = 0
    for _ in range(60):
        control = arm([counts(40, value) for value in _noisy(0.6, 40)])
        variant = arm([counts(40, value) for value in _noisy(0.57, 40)])
        change = statistics.relative_change(variant, control, 0.9)
        covered += change.low <= 0.57 / 0.6 - 1 <= change.high
    # Binomial(60, 0.9): below 46 or all 60 happen in fewer than one in 500 runs each.
    assert 46 <= covered <= 60


def test_a_difference_is_paired_and_covers_as_often_as_it_says() -> None:
    covered, widths = 0, []
    for _ in range(60):
        rates = GENERATOR.uniform(0.2, 0.9, 40)
        one, other = (arm([counts(40, int(GENERATOR.binomial(40, p + more))) for p in rates]) for more in (0.05, 0.0))
        found = statistics.length_difference(one, other, 0.9)
        covered += found.low <= 0.05 <= found.high
        low, high = statistics.length_interval(one, 0.9)
        widths.append((found.high - found.low) / (high - low))
    assert 46 <= covered <= 60
    # Prompts differ far more than arms do.
    assert max(widths) < 0.8


def test_a_difference_is_of_lengths_pooled_over_prompts() -> None:
    one, other = arm([counts(100, 50), counts(10, 10)]), arm([counts(100, 50), counts(20, 10)])
    assert statistics.length_difference(one, other, 0.95).value == pytest.approx(60 / 110 - 60 / 120)
    assert statistics.length_difference(one, one, 0.95).high == 0
    with pytest.raises(ProblemError, match="bench-failed"):
        statistics.length_difference(arm([counts(4, 1)] * 3), arm([counts(4, 1)] * 2), 0.95)


def test_it_is_the_same_each_time() -> None:
    control = arm([counts(40, value) for value in _noisy(0.6, 25)])
    variant = arm([counts(40, value) for value in _noisy(0.5, 25)])
    assert statistics.relative_change(variant, control, 0.95) == statistics.relative_change(variant, control, 0.95)


def test_fewer_prompts_make_it_wider() -> None:
    values = [(30, 20), (10, 12), (25, 24), (18, 9)]
    few = ([counts(40, x) for x, _ in values], [counts(40, y) for _, y in values])
    many = (few[0] * 16, few[1] * 16)
    widths = []
    for control, variant in (few, many):
        change = statistics.relative_change(arm(variant), arm(control), 0.95)
        widths.append(change.high - change.low)
    assert widths[0] > 2 * widths[1]


def test_arms_of_other_prompts_cannot_be_compared() -> None:
    with pytest.raises(ProblemError, match="bench-failed"):
        statistics.relative_change(arm([counts(4, 1)] * 3), arm([counts(4, 1)] * 2), 0.95)


def test_a_dead_control_says_nothing() -> None:
    with pytest.raises(ProblemError, match="bench-failed"):
        statistics.relative_change(arm([counts(4, 1)] * 3), arm([counts(4, 0)] * 3), 0.95)


def test_a_control_that_is_nearly_dead_fails_closed() -> None:
    control = arm([counts(4, 1), *[counts(4, 0)] * 9])
    assert statistics.relative_change(arm([counts(4, 3)] * 10), control, 0.95).low == -1.0


def test_prompts_that_ran_together_are_drawn_together() -> None:
    def grouped(*accepted: int) -> tuple[GroupResult, ...]:
        return tuple(
            GroupResult(ids=(f"{place}a", f"{place}b"), category="chat", counts=counts(20, value))
            for place, value in enumerate(accepted)
        )

    control, variant = (
        arm([counts(60, 45)], groups=grouped(15, 15, 15)),
        arm([counts(60, 30)], groups=grouped(10, 10, 10)),
    )
    assert set(statistics.units(control)) == {"0a+0b", "1a+1b", "2a+2b"}
    assert statistics.relative_change(variant, control, 0.95).value == pytest.approx(-1 / 3)


def test_spread_is_among_runs_of_the_same() -> None:
    assert statistics.spread((arm([counts(10, 5)]),)) is None
    assert statistics.spread((arm([counts(10, 5)]), arm([counts(10, 6)]))) == pytest.approx(0.2)


def test_the_interval_of_a_length_holds_the_length() -> None:
    found = arm([counts(40, value) for value in _noisy(0.6, 30)])
    low, high = statistics.length_interval(found, 0.95)
    assert found.al is not None
    assert 1 < low < found.al < high < 2
