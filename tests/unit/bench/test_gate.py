"""The gate's rules, one by one."""

import pytest

from draftmill.benchmarks import Gate, Interval, Verdict
from draftmill_worker.bench.gate import judge
from tests.unit.bench.arms import arm, counts

CONTROL = arm([counts(10, 8, 6)])
VARIANT = arm([counts(10, 8, 5)])


def _change(value: float, low: float) -> Interval:
    return Interval(value=value, low=low, high=value + 0.01, confidence=0.95)


@pytest.mark.parametrize(
    ("rule", "change", "passes"),
    [
        (Gate(max_al_drop=0.05), _change(-0.01, -0.04), True),
        # What was measured would pass; what the prompts cannot rule out does not.
        (Gate(max_al_drop=0.05), _change(-0.01, -0.06), False),
        (Gate(max_al_drop=0.05), _change(0.2, 0.1), True),
        (Gate(max_al_drop=0.05), _change(-1.0, -1.0), False),
        (Gate(min_al=2.3), _change(0.0, 0.0), True),
        (Gate(min_al=2.31), _change(0.0, 0.0), False),
        (Gate(min_control_al=2.4), _change(0.0, 0.0), True),
        (Gate(min_control_al=2.5), _change(0.0, 0.0), False),
    ],
)
def test_rule(rule: Gate, change: Interval, passes: bool) -> None:
    result = judge(rule, VARIANT, CONTROL, change)
    assert (result.verdict is Verdict.PASSED) is passes
    assert bool(result.failures) is not passes
    assert result.rule == rule


def test_everything_wrong_is_said() -> None:
    result = judge(Gate(max_al_drop=0.1, min_al=4.0, min_control_al=4.0), VARIANT, CONTROL, _change(-0.3, -0.4))
    assert len(result.failures) == 3
    assert "40.0%" in result.failures[0]


def test_a_length_that_is_not_known_fails() -> None:
    assert judge(Gate(min_al=1.0), arm([counts(0, 0)]), CONTROL, _change(0.0, 0.0)).verdict is Verdict.FAILED
