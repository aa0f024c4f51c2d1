"""Benchmarks as lines of text."""

from draftmill.benchmarks import Acceptance, Arm, GateResult, Interval, Verdict
from draftmill.cli.output import columns, plain
from draftmill.jobs import AcceptanceSummary

_HEAD = ("ARM", "AL", "DRAFTS", "ACCEPTED", "BY POSITION", "TOKENS/S", "OUTPUT", "RUNNER", "RECEIPT")


def change_text(change: Interval) -> str:
    return f"{change.value:+.1%} ({change.confidence:.0%} interval {change.low:+.1%} to {change.high:+.1%})"


def acceptance_lines(found: Acceptance) -> list[str]:
    arms = [*([found.none] if found.none else []), found.control, *found.control_repeats, found.variant]
    categories = sorted(found.control.al_by_category)
    rows = [
        (name, f"{found.control.al_by_category[name]:.3f}", f"{found.variant.al_by_category.get(name, 1):.3f}")
        for name in categories
    ]
    lines = [
        f"{len(found.control.prompts)} prompts, {found.benchmark.num_speculative_tokens} draft tokens,"
        f" at most {found.benchmark.prompts.max_tokens} tokens each, temperature {found.benchmark.temperature:g}",
        *columns([_HEAD, *map(_row, arms)], right=frozenset({1, 2, 3, 5})),
        "",
        *columns([("CATEGORY", "CONTROL AL", "VARIANT AL"), *rows], right=frozenset({1, 2})),
        "",
        f"accepted tokens per draft, variant against control: {change_text(found.change)}",
    ]
    if found.control_spread is not None:
        lines.append(f"spread among {1 + len(found.control_repeats)} control runs: {found.control_spread:.2%}")
    return [*lines, *gate_lines(found.gate)]


def _row(arm: Arm) -> tuple[object, ...]:
    counts = arm.counts
    return (
        arm.name + (" (reused)" if arm.reused else ""),
        "-" if arm.al is None else f"{arm.al:.3f}",
        "-" if counts is None else counts.drafts,
        "-" if counts is None else counts.accepted,
        " ".join(f"{rate:.2f}" for rate in arm.conditional_acceptance) or "-",
        "-" if arm.tokens_per_second is None else f"{arm.tokens_per_second:.0f}",
        _output(arm),
        plain(arm.runner) + (" emulated" if arm.emulated else ""),
        arm.receipt,
    )


def _output(arm: Arm) -> str:
    """Whether the text is that of the target alone."""
    if arm.parts_from_none is None:
        return "-"
    return "same" if not arm.parts_from_none else f"{len(arm.parts_from_none)} differ"


def gate_lines(gate: GateResult) -> list[str]:
    return [f"gate {_verdict(gate.verdict)}", *(f"  {plain(failure)}" for failure in gate.failures)]


def _verdict(verdict: Verdict) -> str:
    return "passed" if verdict is Verdict.PASSED else "FAILED"


def failed_gate_lines(found: AcceptanceSummary | None) -> list[str]:
    """A warning to whoever takes a variant that failed a gate; nothing otherwise."""
    if found is None or found.verdict is Verdict.PASSED:
        return []
    return [
        f"WARNING: this variant FAILED the gate of job {found.job}",
        *(f"         {plain(failure)}" for failure in found.failures),
        f"         receipt {found.receipts[0]}",
    ]


def summary_lines(found: AcceptanceSummary, job: str) -> list[str]:
    """In a job's description."""
    whose = "" if found.job == job else f", measured by job {found.job}"
    emulated = ", emulated kernels" if found.emulated else ""
    return [
        f"acceptance {found.al:.3f} of at most {1 + found.num_speculative_tokens}, control"
        f" {found.control_al:.3f}{emulated}",
        f"change     {change_text(found.change)} in accepted tokens per draft",
        f"gate       {_verdict(found.verdict)}{whose}",
        *(f"           {plain(failure)}" for failure in found.failures),
    ]
