"""The gate: whether a variant's numbers are good enough, and if not, everything that is not."""

from draftmill.benchmarks import Arm, Gate, GateResult, Interval, Verdict


def judge(rule: Gate, variant: Arm, control: Arm, change: Interval) -> GateResult:
    """The interval's lower bound decides: a fall that the prompts cannot rule out counts as one."""
    failures = []
    if change.low < -rule.max_al_drop:
        failures.append(
            f"accepted tokens per draft may have fallen by {-change.low:.1%}"
            f" (measured {change.value:+.1%}); at most {rule.max_al_drop:.1%} is allowed"
        )
    if rule.min_al is not None and (variant.al is None or variant.al < rule.min_al):
        failures.append(f"acceptance length {_number(variant.al)} is below {rule.min_al:.3f}")
    if rule.min_control_al is not None and (control.al is None or control.al < rule.min_control_al):
        failures.append(f"the control's acceptance length {_number(control.al)} is below {rule.min_control_al:.3f}")
    return GateResult(verdict=Verdict.FAILED if failures else Verdict.PASSED, rule=rule, failures=tuple(failures))


def _number(length: float | None) -> str:
    return "unknown" if length is None else f"{length:.3f}"
