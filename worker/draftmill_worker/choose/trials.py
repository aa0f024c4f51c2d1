"""Boots of candidates beside one shared control, each recipe once, up to a limit."""

from collections.abc import Callable
from dataclasses import dataclass, field

from draftmill.benchmarks import Arm, Interval
from draftmill_worker.bench import statistics
from draftmill_worker.choose.build import Builder, Recipe
from draftmill_worker.choose.engine import Engine, Measurement
from draftmill_worker.stage import Reporter


@dataclass
class Trials:
    engine: Engine
    builder: Builder
    limit: int
    report: Reporter
    step: Callable[[], None]
    """Called after each boot."""
    control: Arm | None = None
    boots: int = 0
    """Besides the control's."""
    _arms: dict[Recipe, Arm] = field(default_factory=dict)

    @property
    def left(self) -> int:
        return self.limit - self.boots

    def run(self, recipe: Recipe) -> Measurement:
        """Raises what a boot raises; ValueError beyond the limit."""
        if self.left < 1:
            raise ValueError(f"all {self.limit} boots are used")
        with self.builder.built(recipe) as (folder, plan):
            if self.control is None:
                self.engine.check(folder, plan)
                self.control = self.engine.control(folder, plan)
            found = self.engine.measure(folder, plan, self.control)
        self._arms[recipe] = found.arm
        self.boots += 1
        self.report.log("info", f"{recipe}: AL {found.al.value:.3f} [{found.al.low:.3f}, {found.al.high:.3f}]")
        self.step()
        return found

    def gain(self, one: Recipe, other: Recipe, compared: int) -> Interval:
        """Acceptance length of `one` less that of `other`, at a confidence that holds for `compared` such gains."""
        confidence = 1 - (1 - self.engine.benchmark.gate.confidence) / max(1, compared)
        return statistics.length_difference(self._arms[one], self._arms[other], confidence)
