"""Which candidates there are, which of them are worth an engine's boot, and which one is chosen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftmill.benchmarks import Interval
from draftmill.choices import Auto, Candidate, Comparison, Sensitivity
from draftmill.problems import Offender, ProblemError
from draftmill_worker.choose.units import Unit


@dataclass(frozen=True)
class Weighed:
    unit: Unit
    sensitivity: Sensitivity

    @property
    def cost(self) -> float:
        """Accepted tokens per draft lost by byte saved; where nothing was measured, squared weight error by byte.

        A measured gain is noise: it costs nothing.
        """
        change, error = self.sensitivity.change, self.sensitivity.weight_error
        loss = error**2 if change is None else max(0.0, -change.value)
        return loss / max(1, self.unit.saved_bytes)


def rank(weighed: Sequence[Weighed]) -> tuple[Weighed, ...]:
    """The costliest first. Measured and unmeasured units do not compare: what was not measured comes last."""
    return tuple(sorted(weighed, key=lambda one: (one.sensitivity.change is None, -one.cost, one.unit.name)))


def prefixes(ranked: Sequence[Weighed], fits: Callable[[tuple[Unit, ...]], bool]) -> list[tuple[Unit, ...]]:
    """Ever more of the costliest units kept, without those that do not fit beside them; some unit is quantized."""
    found: list[tuple[Unit, ...]] = []
    kept: tuple[Unit, ...] = ()
    for one in ranked:
        more = (*kept, one.unit)
        if len(more) < len(ranked) and fits(more):
            kept = more
            found.append(kept)
    return found


def within(auto: Auto, source_bytes: int, variant_bytes: int) -> bool:
    return auto.max_size is None or variant_bytes <= auto.max_size * source_bytes


def in_turn(auto: Auto, candidates: Sequence[Candidate]) -> list[Candidate]:
    """As they are to be measured while there are boots: under a size the largest first, otherwise the smallest. Of
    equal sizes the least weight error comes first."""
    sign = -1 if auto.max_al_drop is None else 1
    return sorted(candidates, key=lambda one: (sign * one.variant_bytes, one.weight_error))


def passes(auto: Auto, candidate: Candidate) -> bool:
    """Whether it was measured, and keeps within the budget of acceptance."""
    change = candidate.change
    return change is not None and (auto.max_al_drop is None or change.low >= -auto.max_al_drop)


def pick(auto: Auto, candidates: Sequence[Candidate], *, measured: bool) -> tuple[int, str]:
    """Place of the chosen candidate, and why. Raises `budget-unreachable` with every candidate."""
    if not measured:
        best = min(range(len(candidates)), key=lambda i: (candidates[i].weight_error, candidates[i].variant_bytes))
        return best, "the least weight error within the size; acceptance was not measured"
    good = [i for i, candidate in enumerate(candidates) if passes(auto, candidate)]
    if not good:
        raise unreachable(candidates)
    if auto.max_al_drop is not None:
        return min(good, key=lambda i: candidates[i].variant_bytes), "the smallest measured variant within the budget"
    best = max(good, key=lambda i: (candidates[i].al or 0.0, -candidates[i].variant_bytes))
    return best, "the highest acceptance length measured within the size"


def says(chosen: Candidate, baseline: Candidate, gain: Interval) -> Comparison:
    if (chosen.format, chosen.kept, chosen.scale_search) == (baseline.format, baseline.kept, baseline.scale_search):
        return Comparison.SAME
    if gain.low > 0:
        return Comparison.BEATS if chosen.variant_bytes <= baseline.variant_bytes else Comparison.MORE_FOR_MORE
    return Comparison.WORSE if gain.high < 0 else Comparison.NOT_SHOWN


def unreachable(candidates: Sequence[Candidate]) -> ProblemError:
    offenders = [
        Offender(
            where=f"{candidate.format}{', scale search' if candidate.scale_search else ''}, {len(candidate.kept)} kept",
            message=f"{candidate.variant_bytes} bytes"
            + ("" if candidate.change is None else f", {candidate.change.low:+.1%} at worst"),
        )
        for candidate in candidates
    ]
    return ProblemError("budget-unreachable", "no candidate keeps within the budget of auto", offenders)
