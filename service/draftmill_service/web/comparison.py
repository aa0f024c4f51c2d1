"""Variants of one drafter beside each other, as far as they were measured against the same control."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from draftmill.benchmarks import Acceptance, Arm, Verdict
from draftmill.jobs import Job
from draftmill_service.web.words import plain, source

COLOURS = 8
"""Series that the style sheet tells apart; more begin anew, dashed."""


@dataclass(frozen=True)
class Marked:
    """Told apart in a drawing by a number: 0 for the control, variants from 1."""

    mark: int

    @property
    def colour(self) -> int:
        return 0 if self.mark == 0 else (self.mark - 1) % COLOURS + 1

    @property
    def again(self) -> bool:
        """Its colour is another's too."""
        return self.mark > COLOURS


@dataclass(frozen=True, kw_only=True)
class Series(Marked):
    """One arm of a benchmark, as a chart shows it."""

    name: str
    href: str | None
    al: float | None
    rates: tuple[float, ...]
    samples: tuple[int, ...]
    categories: dict[str, float]
    emulated: bool


@dataclass(frozen=True, kw_only=True)
class Candidate(Marked):
    """A variant, or the control it was measured against (then without a job)."""

    name: str
    job: Job | None
    bytes: int
    al: float
    low: float | None
    """Ends of its interval, from that of its change against the control."""
    high: float | None
    passed: bool | None
    emulated: bool
    best: bool = False
    """No other is both smaller and accepted as well."""


class Measured(NamedTuple):
    job: Job
    found: Acceptance


@dataclass(frozen=True)
class Group:
    """Benchmarks with an equal control key: the same target, drafter, prompts, engine and host class."""

    key: str
    drafter: str
    target: str
    prompts: int
    drafted: int
    candidates: tuple[Candidate, ...]
    series: tuple[Series, ...]


def samples(arm: Arm) -> tuple[int, ...]:
    """Drafts that came as far as each position."""
    if arm.counts is None:
        return ()
    return (arm.counts.drafts, *arm.counts.accepted_per_position[:-1])


def _series(name: str, href: str | None, mark: int, arm: Arm) -> Series:
    return Series(
        mark=mark,
        name=name,
        href=href,
        al=arm.al,
        rates=arm.conditional_acceptance,
        samples=samples(arm),
        categories=arm.al_by_category,
        emulated=arm.emulated,
    )


def curves_of(job: Job, found: Acceptance) -> list[Series]:
    return [
        _series("control", None, 0, found.control),
        _series(name_of(job), None, 1, found.variant),
    ]


def name_of(job: Job) -> str:
    """Format and what else sets a variant apart."""
    options = job.spec.quantize
    parts = [str(job.spec.format if job.resolved_spec is None else job.resolved_spec.format)]
    if options.lm_head:
        parts.append("+lm_head")
    if options.exclude:
        more = "…" if len(options.exclude) > 2 else ""
        parts.append("without " + ", ".join(map(plain, options.exclude[:2])) + more)
    if options.scales != "fused":
        parts.append(f"{options.scales} scales")
    if options.dtype != "bfloat16":
        parts.append(options.dtype)
    return " ".join(parts)


def groups(measured: Iterable[Measured]) -> list[Group]:
    """By control key, in the order given; of several benchmarks of one variant the newest."""
    by_key: dict[str, dict[str, Measured]] = {}
    for each in measured:
        variant = each.job.resolved_spec.variant if each.job.resolved_spec else each.job.id
        kept = by_key.setdefault(each.found.control_key, {})
        if variant not in kept or kept[variant].job.id < each.job.id:
            kept[variant] = each
    return [_group(key, list(found.values())) for key, found in by_key.items()]


def _group(key: str, measured: list[Measured]) -> Group:
    measured = sorted(measured, key=lambda each: (each.job.spec.format, each.job.id))
    first = measured[0]
    candidates, series = [_control(first)], [_series("control (unquantized)", None, 0, first.found.control)]
    for number, each in enumerate(measured, 1):
        candidates.append(_candidate(each, number))
        series.append(_series(name_of(each.job), each.job.id, number, each.found.variant))
    return Group(
        key,
        source(first.job.spec.source),
        source(first.found.benchmark.target),
        len(first.found.control.prompts),
        first.found.benchmark.num_speculative_tokens,
        tuple(front(candidates)),
        tuple(series),
    )


def _control(each: Measured) -> Candidate:
    summary, control = each.job.summary, each.found.control
    return Candidate(
        mark=0,
        name="control (unquantized)",
        job=None,
        bytes=0 if summary is None else summary.source_bytes,
        al=control.al or 1.0,
        low=None,
        high=None,
        passed=None,
        emulated=control.emulated,
    )


def _candidate(each: Measured, mark: int) -> Candidate:
    found, summary = each.found, each.job.summary
    accepted = (found.control.al or 1.0) - 1
    return Candidate(
        mark=mark,
        name=name_of(each.job),
        job=each.job,
        bytes=0 if summary is None else summary.variant_bytes,
        al=found.variant.al or 1.0,
        low=max(1.0, 1 + accepted * (1 + found.change.low)),
        high=max(1.0, 1 + accepted * (1 + found.change.high)),
        passed=found.gate.verdict is Verdict.PASSED,
        emulated=found.variant.emulated,
    )


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The same, those on the Pareto front marked: of all that did not fail their gate, none is at most as large and
    accepted at least as well, and better in one of the two."""
    fit = [each for each in candidates if each.passed is not False]

    def beaten(one: Candidate) -> bool:
        return any(
            other.bytes <= one.bytes and other.al >= one.al and (other.bytes < one.bytes or other.al > one.al)
            for other in fit
        )

    return [replace(each, best=each in fit and not beaten(each)) for each in candidates]
