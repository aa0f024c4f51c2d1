"""The search: every format whole, then the smallest format with its costliest modules kept, within the budget."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from draftmill.choices import Auto, Baseline, Candidate, Choice, Refused, Sensitivity
from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Plan
from draftmill.problems import ProblemError
from draftmill_worker.choose import search
from draftmill_worker.choose.build import Builder, Recipe
from draftmill_worker.choose.engine import Engine
from draftmill_worker.choose.errors import Squares, relative, squares
from draftmill_worker.choose.search import Weighed
from draftmill_worker.choose.trials import Trials
from draftmill_worker.choose.units import Unit, patterns, units
from draftmill_worker.stage import Reporter

BASELINE = Recipe(Format.NVFP4)
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
    _errors: dict[Recipe, dict[str, Squares]] = field(default_factory=dict)
    """Of these formats, also with searched scales."""
    _measured: dict[Recipe, Candidate] = field(default_factory=dict)

    def run(self) -> Choice:
        """Raises `budget-unreachable`; where every format is refused, the last refusal; and what a boot raises."""
        refused = self._make_plans()
        for recipe in self._whole:
            with self._builder.built(recipe) as (folder, plan):
                self._errors[recipe] = squares(self.source, folder, plan)
            self._step()
        ranked = self._measure_units(search.rank([self._weighed(unit) for unit in self._units.values()]))
        candidates = self._candidates(ranked)
        if not candidates:
            raise search.unreachable(self._plain())
        self._measure(candidates)
        candidates = [self._measured.get(self._recipe(one), one) for one in candidates]
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
        given = None if self.engine is None else self.engine.source
        repo, commit = (None, None) if given is None else (given.repo, given.commit)
        return Builder(self.source, self.options, self.scratch, repo, commit)

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
                self._plans[format] = self._builder.plan(Recipe(format))
            except ProblemError as error:
                refused.append(Refused(format=format, problem=error.problem.slug, detail=error.problem.detail))
                last = error
        if not self._plans and last is not None:
            raise last
        return refused

    @cached_property
    def _whole(self) -> tuple[Recipe, ...]:
        """Every format with nothing kept, once more with searched scales where it has them."""
        searched = [Recipe(format, scale_search=True) for format in self._plans if format in self._builder.searches]
        return (*map(Recipe, self._plans), *searched)

    def _weighed(self, unit: Unit) -> Weighed:
        error = relative([self._errors[Recipe(self._base)][weight] for weight in unit.weights])
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
        boots = (self._trials.left - (BASELINE.format in self._plans)) // 2
        chosen = [one for one in ranked if self._fits((one.unit,))][:boots]
        rest = [one for one in ranked if one not in chosen]
        return search.rank([*(self._alone(one, self._trials) for one in chosen), *rest])

    def _alone(self, one: Weighed, trials: Trials) -> Weighed:
        others = tuple(other for other in self._units.values() if other != one.unit)
        found = trials.run(Recipe(self._base, others))
        known = {"change": found.change, "receipt": found.receipt}
        return Weighed(one.unit, one.sensitivity.model_copy(update=known))

    def _fits(self, kept: tuple[Unit, ...]) -> bool:
        base = self._plans[self._base]
        size = base.variant_bytes + sum(unit.saved_bytes for unit in kept)
        return search.within(self.auto, base.source_bytes, size)

    def _candidates(self, ranked: tuple[Weighed, ...]) -> list[Candidate]:
        """Those within the size, the smallest first."""
        plan, searched = self._plans[self._base], self._base in self._builder.searches
        plain = [one for one in self._plain() if search.within(self.auto, plan.source_bytes, one.variant_bytes)]
        kept = [
            self._candidate(Recipe(self._base, some, scale_search=searched))
            for some in search.prefixes(ranked, self._fits)
        ]
        return sorted((*plain, *kept), key=lambda one: (one.variant_bytes, one.format, one.scale_search))

    def _plain(self) -> list[Candidate]:
        return [self._candidate(recipe) for recipe in self._whole]

    def _candidate(self, recipe: Recipe) -> Candidate:
        left = {weight for unit in recipe.kept for weight in unit.weights}
        norms = {weight: norm for found in self._errors.values() for weight, (_, norm) in found.items()}
        errors = self._errors[replace(recipe, kept=())]
        parts = [both for weight, both in errors.items() if weight not in left]
        plan = self._builder.plan(recipe) if recipe.kept else self._plans[recipe.format]
        return Candidate(
            format=recipe.format,
            kept=tuple(unit.name for unit in recipe.kept),
            exclude=patterns(recipe.kept),
            scale_search=recipe.scale_search,
            variant_bytes=plan.variant_bytes,
            weight_error=relative(parts, sum(norms.values())),
        )

    def _recipe(self, candidate: Candidate) -> Recipe:
        kept = tuple(self._units[name] for name in candidate.kept)
        return Recipe(candidate.format, kept, candidate.scale_search)

    def _measure(self, candidates: list[Candidate]) -> None:
        """The baseline, then candidates while there are boots."""
        trials = self._trials
        if trials is None:
            return
        if BASELINE.format in self._plans:
            self._try(self._candidate(BASELINE), trials)
        for candidate in search.in_turn(self.auto, candidates):
            recipe = self._recipe(candidate)
            if recipe not in self._measured:
                if trials.left < 1:
                    break
                self._try(candidate, trials)
            if self.auto.max_al_drop is not None and search.passes(self.auto, self._measured[recipe]):
                # Smallest first: whatever is larger is not chosen.
                break

    def _try(self, candidate: Candidate, trials: Trials) -> None:
        recipe = self._recipe(candidate)
        found = trials.run(recipe)
        known = {
            "al": found.al.value,
            "al_interval": found.al,
            "change": found.change,
            "receipt": found.receipt,
        }
        self._measured[recipe] = candidate.model_copy(update=known)

    def _compared(self, chosen: Candidate) -> Baseline | None:
        if self._trials is None or BASELINE not in self._measured:
            return None
        baseline, others = self._measured[BASELINE], max(1, len(self._measured) - 1)
        gain = self._trials.gain(self._recipe(chosen), BASELINE, others)
        says = search.says(chosen, baseline, gain)
        return Baseline(variant=baseline, gain=gain, compared=others, says=says)

    def _step(self) -> None:
        self._done += 1
        total = len(self._whole) + (0 if self.engine is None else self.auto.boots)
        self.report.progress(self._done, total, "variants")
