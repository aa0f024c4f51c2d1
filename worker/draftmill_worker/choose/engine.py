"""Acceptance of a built variant beside its control, in a real engine."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp

from draftmill.benchmarks import Arm, ArmName, Benchmark, Interval
from draftmill.plans import Plan
from draftmill_worker.bench import prompts, statistics
from draftmill_worker.bench.arms import Arms, Place
from draftmill_worker.bench.engine_args import check_remote_code
from draftmill_worker.bench.pair import check_pair
from draftmill_worker.bench.speculative import check_length
from draftmill_worker.bench.subject import Directory, Subject
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.stage import Level, Reporter, Unit


class _LogOnly:
    """Passes messages on; progress is the search's own."""

    def __init__(self, report: Reporter) -> None:
        self._report = report

    def progress(self, done: int, total: int, unit: Unit) -> None:
        del done, total, unit

    def log(self, level: Level, message: str) -> None:
        self._report.log(level, message)


@dataclass(frozen=True)
class Measurement:
    arm: Arm
    al: Interval
    change: Interval
    """Of accepted tokens per draft, against the control."""

    @property
    def receipt(self) -> str:
        return self.arm.receipt


@dataclass(frozen=True)
class Engine:
    target: Directory
    source: Directory
    benchmark: Benchmark
    prompts_file: Path | None
    trusted: tuple[str, ...]
    place: Place
    report: Reporter

    @cached_property
    def _prompts(self) -> tuple[prompts.Prompt, ...]:
        return prompts.load(self.benchmark.prompts, self.prompts_file)

    def check(self, folder: Path, plan: Plan) -> None:
        """Raises what `bench` raises of a pair that cannot be measured, before anything is built for it."""
        subject = self._subject(folder, plan)
        check_remote_code(self.benchmark, {"target": self.target.repo, "source": self.source.repo}, self.trusted)
        check_pair(subject)
        check_length(subject.drafter, self.benchmark.num_speculative_tokens)

    def control(self, folder: Path, plan: Plan) -> Arm:
        return self._arms(folder, plan).run(ArmName.CONTROL)[0]

    def boot(self, folder: Path, plan: Plan) -> Arm:
        return self._arms(folder, plan).run(ArmName.VARIANT)[0]

    def measure(self, folder: Path, plan: Plan, control: Arm) -> Measurement:
        """Raises what a boot raises, `no-drafts` among it."""
        arm = self.boot(folder, plan)
        confidence = self.benchmark.gate.confidence
        low, high = statistics.length_interval(arm, confidence)
        al = Interval(value=arm.al or 1.0, low=low, high=high, confidence=confidence)
        return Measurement(arm, al, statistics.relative_change(arm, control, confidence))

    def _subject(self, folder: Path, plan: Plan) -> Subject:
        variant = Directory(folder, make_manifest(folder), self.source.repo, self.source.commit)
        return Subject(self.target, self.source, variant, plan)

    def _arms(self, folder: Path, plan: Plan) -> Arms:
        # An equal arm of an earlier job serves the search; the job's own benchmark is the one that may be fresh.
        benchmark = self.benchmark.model_copy(update={"fresh": False})
        sha256 = prompts.sha256(self._prompts, benchmark.prompts)
        # Arms number their boots' folders from 0.
        place = replace(self.place, scratch=Path(mkdtemp(dir=self.place.scratch)))
        report, total = _LogOnly(self.report), len(self._prompts)
        return Arms(self._subject(folder, plan), benchmark, self._prompts, sha256, place, report, total=total)
