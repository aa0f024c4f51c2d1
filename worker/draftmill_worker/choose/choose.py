"""The search: every format plain, then the smallest format with its costliest modules kept, within the budget."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from draftmill.benchmarks import Arm
from draftmill.choices import Auto, Candidate, Choice, Refused, Sensitivity
from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Plan
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.choose import search
from draftmill_worker.choose.engine import Engine, Measurement
from draftmill_worker.choose.errors import Squares, relative, squares
from draftmill_worker.choose.search import Weighed
from draftmill_worker.choose.units import Unit, patterns, units
from draftmill_worker.mill import Switches, mill
from draftmill_worker.quantize.existing import read_drafter
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.stage import Reporter


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
    _total: int = 0
    _control: Arm | None = None
    _plans: dict[Format, Plan] = field(default_factory=dict)
    """Of the formats that this drafter can have, each plain."""
    _errors: dict[Format, dict[str, Squares]] = field(default_factory=dict)

    def run(self) -> Choice:
        """Raises `budget-unreachable`; where every format is refused, the last refusal; and what a boot raises."""
        refused = self._make_plans()
        base = self._base
        self._total = len(self._plans) + (0 if self.engine is None else self.auto.boots)
        for format, plan in self._plans.items():
            with self._built(format, ()) as folder:
                self._errors[format] = squares(self.source, folder, plan)
            self._step()
        ranked = self._measure_units(search.rank([self._weighed(unit) for unit in units(self._plans[base])]))
        candidates = self._candidates(ranked)
        if not candidates:
            raise search.unreachable(self._plain())
        candidates = self._measure(candidates)
        chosen, why = search.pick(self.auto, candidates, measured=self.engine is not None)
        return Choice(
            auto=self.auto,
            source_bytes=self._plans[base].source_bytes,
            base=base,
            control_al=None if self._control is None else self._control.al,
            sensitivities=tuple(one.sensitivity for one in ranked),
            candidates=tuple(candidates),
            refused=tuple(refused),
            chosen=chosen,
            why=why,
        )

    def _make_plans(self) -> list[Refused]:
        refused, last = [], None
        for format in self.auto.formats or tuple(Format):
            try:
                self._plans[format] = self._plan(format, ())
            except ProblemError as error:
                refused.append(Refused(format=format, problem=error.problem.slug, detail=error.problem.detail))
                last = error
        if not self._plans and last is not None:
            raise last
        return refused

    @property
    def _base(self) -> Format:
        """The smallest format, whose units are weighed and kept."""
        return min(self._plans, key=lambda format: self._plans[format].variant_bytes)

    def _options(self, kept: tuple[Unit, ...]) -> QuantizeOptions:
        return self.options.model_copy(update={"exclude": (*self.options.exclude, *patterns(kept))})

    def _plan(self, format: Format, kept: tuple[Unit, ...]) -> Plan:
        options, checkpoint = self._options(kept), open_checkpoint(self.source)
        return make_plan(checkpoint, read_drafter(checkpoint, format, options), format, options)

    @contextmanager
    def _built(self, format: Format, kept: tuple[Unit, ...]) -> Iterator[Path]:
        """The variant, for as long as the block runs."""
        folder = self.scratch / "candidate"
        switches = Switches(verify=False, fsync=False)
        mill(self.source, folder, format, self._options(kept), switches=switches, progress=lambda *_: None)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)

    def _weighed(self, unit: Unit) -> Weighed:
        error = relative([self._errors[self._base][weight] for weight in unit.weights])
        return Weighed(
            unit,
            Sensitivity(unit=unit.name, weights=unit.weights, saved_bytes=unit.saved_bytes, weight_error=error),
        )

    def _measure_units(self, ranked: tuple[Weighed, ...]) -> tuple[Weighed, ...]:
        """One module at a time, the costliest by weight error first, with half of the boots."""
        if self.engine is None or len(ranked) < 2:
            # A lone unit is the format itself, which is measured as such.
            return ranked
        chosen, rest = ranked[: self.auto.boots // 2], ranked[self.auto.boots // 2 :]
        return search.rank([*(self._alone(one, ranked) for one in chosen), *rest])

    def _alone(self, one: Weighed, every: tuple[Weighed, ...]) -> Weighed:
        others = tuple(other.unit for other in every if other.unit != one.unit)
        found = self._boot(self._base, others)
        return Weighed(one.unit, one.sensitivity.model_copy(update={"change": found.change, "receipt": found.receipt}))

    def _candidates(self, ranked: tuple[Weighed, ...]) -> list[Candidate]:
        """Those within the size, the smallest first."""
        base = self._plans[self._base]

        def fits(kept: tuple[Unit, ...]) -> bool:
            size = base.variant_bytes + sum(unit.saved_bytes for unit in kept)
            return search.within(self.auto, base.source_bytes, size)

        plain = [one for one in self._plain() if search.within(self.auto, base.source_bytes, one.variant_bytes)]
        kept = [
            self._candidate(self._base, self._plan(self._base, some), some) for some in search.prefixes(ranked, fits)
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

    def _measure(self, candidates: list[Candidate]) -> list[Candidate]:
        if self.engine is None:
            return candidates
        named = {unit.name: unit for unit in units(self._plans[self._base])}
        measured = {}
        for candidate in search.worth(self.auto, candidates, self.auto.boots - self.auto.boots // 2):
            found = self._boot(candidate.format, tuple(named[name] for name in candidate.kept))
            one = candidate.model_copy(update={"al": found.al, "change": found.change, "receipt": found.receipt})
            measured[candidate] = one
            if self.auto.max_al_drop is not None and search.passes(self.auto, one):
                # Smallest first: whatever is larger is not chosen.
                break
        return [measured.get(candidate, candidate) for candidate in candidates]

    def _boot(self, format: Format, kept: tuple[Unit, ...]) -> Measurement:
        if self.engine is None:
            raise ValueError("there is no engine to boot")
        plan = self._plan(format, kept)
        with self._built(format, kept) as folder:
            if self._control is None:
                self.engine.check(folder, plan)
                self._control = self.engine.control(folder, plan)
            found = self.engine.measure(folder, plan, self._control)
        kept_words = f", {', '.join(unit.name for unit in kept)} kept" if kept else ""
        self.report.log("info", f"{format}{kept_words}: AL {found.al:.3f}, {found.change.value:+.1%}")
        self._step()
        return found

    def _step(self) -> None:
        self._done += 1
        self.report.progress(min(self._done, self._total), self._total, "variants")
