"""The search: every format plain, then the smallest format with its costliest modules kept, within the budget."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from draftmill.choices import Auto, Baseline, Candidate, Choice, Refused, Sensitivity
from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Plan
from draftmill.problems import ProblemError
from draftmill_worker.choose import search
from draftmill_worker.choose.build import Builder
from draftmill_worker.choose.engine import Engine
from draftmill_worker.choose.errors import Squares, relative, squares
from draftmill_worker.choose.search import Weighed
from draftmill_worker.choose.trials import Recipe, Trials
from draftmill_worker.choose.units import Unit, patterns, units
from draftmill_worker.stage import Reporter

BASELINE: Recipe = (Format.NVFP4, ())
"""What a choice is compared with."""


@dataclass
class Search:
    source: Path
    options: QuantizeOptions
    auto: Auto
    engine: Engine | None
    """None where weight error alone decides."""
    scratch: Path
    report: Reporter
    _done: int = 0
    _plans: dict[Format, Plan] = field(default_factory=dict)
    """Of the formats that this drafter can have, each plain."""
    _errors: dict[Format, dict[str, Squares]] = field(default_factory=dict)
    _measured: dict[Recipe, Candidate] = field(default_factory=dict)

    def run(self) -> Choice:
        """Raises `budget-unreachable`; where every format is refused, the last refusal; and what a boot raises."""
        refused = self._make_plans()
        for format, plan in self._plans.items():
            with self._builder.built(format) as folder:
                self._errors[format] = squares(self.source, folder, plan)
            self._step()
        ranked = self._measure_units(search.rank([self._weighed(unit) for unit in self._units.values()]))
        candidates = self._candidates(ranked)
        if not candidates:
            raise search.unreachable(self._plain())
        self._measure(candidates)
        candidates = [self._measured.get(_recipe(one), one) for one in candidates]
        chosen, why = search.pick(self.auto, candidates, measured=self.engine is not None)
        return Choice(
            auto=self.auto,
            source_bytes=self._plans[self._base].source_bytes,
            base=self._base,
            control_al=None if self._trials is None or self._trials.control is None else self._trials.control.al,
            sensitivities=tuple(one.sensitivity for one in ranked),
            candidates=tuple(candidates),
            refused=tuple(refused),
            chosen=chosen,
            why=why,
            baseline=self._compared(candidates[chosen]),
        )

    @cached_property
    def _builder(self) -> Builder:
        return Builder(self.source, self.options, self.scratch)

    @cached_property
    def _trials(self) -> Trials | None:
        if self.engine is None:
            return None
        return Trials(self.engine, self._builder, self.auto.boots, self.report, self._step)

    @cached_property
    def _base(self) -> Format:
        """The smallest format, whose units are weighed and kept."""
        return min(self._plans, key=lambda format: self._plans[format].variant_bytes)

    @cached_property
    def _units(self) -> dict[str, Unit]:
        """Of the base format, by name."""
        return {unit.name: unit for unit in units(self._plans[self._base])}

    def _make_plans(self) -> list[Refused]:
        refused, last = [], None
        for format in self.auto.formats or tuple(Format):
            try:
                self._plans[format] = self._builder.plan(format)
            except ProblemError as error:
                refused.append(Refused(format=format, problem=error.problem.slug, detail=error.problem.detail))
                last = error
        if not self._plans and last is not None:
            raise last
        return refused

    def _weighed(self, unit: Unit) -> Weighed:
        error = relative([self._errors[self._base][weight] for weight in unit.weights])
        return Weighed(
            unit,
            Sensitivity(unit=unit.name, weights=unit.weights, saved_bytes=unit.saved_bytes, weight_error=error),
        )

    def _measure_units(self, ranked: tuple[Weighed, ...]) -> tuple[Weighed, ...]:
        """One module at a time, the costliest by weight error first, with half of the boots. Of those alone that there
        is room to keep: what the others cost decides nothing."""
        if self._trials is None or len(ranked) < 2:
            # A lone unit is the format itself, which is measured as such.
            return ranked
        boots = (self._trials.left - (BASELINE[0] in self._plans)) // 2
        chosen = [one for one in ranked if self._fits((one.unit,))][:boots]
        rest = [one for one in ranked if one not in chosen]
        return search.rank([*(self._alone(one, self._trials) for one in chosen), *rest])

    def _alone(self, one: Weighed, trials: Trials) -> Weighed:
        others = tuple(other for other in self._units.values() if other != one.unit)
        found = trials.run(self._base, others)
        known = {"change": found.change, "receipt": found.receipt}
        return Weighed(one.unit, one.sensitivity.model_copy(update=known))

    def _fits(self, kept: tuple[Unit, ...]) -> bool:
        base = self._plans[self._base]
        size = base.variant_bytes + sum(unit.saved_bytes for unit in kept)
        return search.within(self.auto, base.source_bytes, size)

    def _candidates(self, ranked: tuple[Weighed, ...]) -> list[Candidate]:
        """Those within the size, the smallest first."""
        source_bytes = self._plans[self._base].source_bytes
        plain = [one for one in self._plain() if search.within(self.auto, source_bytes, one.variant_bytes)]
        kept = [
            self._candidate(self._base, self._builder.plan(self._base, some), some)
            for some in search.prefixes(ranked, self._fits)
        ]
        return sorted((*plain, *kept), key=lambda one: (one.variant_bytes, one.format))

    def _plain(self) -> list[Candidate]:
        return [self._candidate(format, plan, ()) for format, plan in self._plans.items()]

    def _candidate(self, format: Format, plan: Plan, kept: tuple[Unit, ...]) -> Candidate:
        left = {weight for unit in kept for weight in unit.weights}
        norms = {weight: norm for found in self._errors.values() for weight, (_, norm) in found.items()}
        parts = [both for weight, both in self._errors[format].items() if weight not in left]
        return Candidate(
            format=format,
            kept=tuple(unit.name for unit in kept),
            exclude=patterns(kept),
            variant_bytes=plan.variant_bytes,
            weight_error=relative(parts, sum(norms.values())),
        )

    def _measure(self, candidates: list[Candidate]) -> None:
        """The baseline, then candidates while there are boots."""
        trials = self._trials
        if trials is None:
            return
        if (plan := self._plans.get(BASELINE[0])) is not None:
            self._try(self._candidate(BASELINE[0], plan, ()), trials)
        for candidate in search.in_turn(self.auto, candidates):
            if _recipe(candidate) not in self._measured:
                if trials.left < 1:
                    break
                self._try(candidate, trials)
            if self.auto.max_al_drop is not None and search.passes(self.auto, self._measured[_recipe(candidate)]):
                # Smallest first: whatever is larger is not chosen.
                break

    def _try(self, candidate: Candidate, trials: Trials) -> None:
        found = trials.run(candidate.format, tuple(self._units[name] for name in candidate.kept))
        known = {
            "al": found.al.value,
            "al_interval": found.al,
            "change": found.change,
            "receipt": found.receipt,
        }
        self._measured[_recipe(candidate)] = candidate.model_copy(update=known)

    def _compared(self, chosen: Candidate) -> Baseline | None:
        if self._trials is None or BASELINE not in self._measured:
            return None
        baseline, others = self._measured[BASELINE], max(1, len(self._measured) - 1)
        gain = self._trials.gain(_recipe(chosen), BASELINE, others)
        says = search.says(chosen, baseline, gain)
        return Baseline(variant=baseline, gain=gain, compared=others, says=says)

    def _step(self) -> None:
        self._done += 1
        total = len(self._plans) + (0 if self.engine is None else self.auto.boots)
        self.report.progress(self._done, total, "variants")


def _recipe(candidate: Candidate) -> Recipe:
    return candidate.format, candidate.kept
