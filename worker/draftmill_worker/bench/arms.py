"""Running one arm: boot, receipt, rules; or the same arm from before."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from draftmill.benchmarks import Arm, ArmName, Benchmark
from draftmill.digests import digest
from draftmill.problems import Offender, ProblemError
from draftmill.receipts import Checkpointed, Phase, PhaseRecord, Receipt
from draftmill_worker import devices
from draftmill_worker.bench import boot, memory, model_infos
from draftmill_worker.bench.arm import make_arm, output_sha256
from draftmill_worker.bench.build import bench_build
from draftmill_worker.bench.engine_args import engine_args
from draftmill_worker.bench.engine_env import cache_bytes, engine_environment
from draftmill_worker.bench.measured import Measured
from draftmill_worker.bench.prompts import Prompt
from draftmill_worker.bench.speculative import Route, route, speculative_config
from draftmill_worker.bench.subject import Directory, Subject
from draftmill_worker.bench.turns import turn
from draftmill_worker.bench.wire import EngineRequest
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.receipts import collect, rules
from draftmill_worker.receipts.archive import ArchiveWriter, Boot
from draftmill_worker.receipts.expected import Expected
from draftmill_worker.receipts.host import host
from draftmill_worker.receipts.versions import CPU_ENGINE, NO_ENGINE, engine_build
from draftmill_worker.stage import Reporter

WARM_UP = Prompt(id="warm-up", turns=("Name the days of the week, then the months of the year.",))


@dataclass(frozen=True)
class Place:
    """Where boots happen and are recorded."""

    data_dir: Path
    scratch: Path
    archive: ArchiveWriter
    boot_seconds: float
    job: str | None = None
    attempt: int | None = None
    devices: tuple[str, ...] = (devices.CPU,)
    """What the engines have to themselves."""


@dataclass(frozen=True)
class Choice:
    """An arm as it is to be run."""

    name: ArmName
    drafter: Directory | None
    quantized: bool
    speculative: dict[str, Any] | None
    route: Route
    target: Directory

    @property
    def directories(self) -> tuple[Directory, ...]:
        """Those that the engine reads, each once."""
        other = self.drafter is not None and self.drafter.folder != self.target.folder
        return (self.target, self.drafter) if self.drafter is not None and other else (self.target,)


@dataclass(frozen=True)
class Booted:
    """A boot that ended with a result, its receipt not yet made."""

    opened: Boot
    home: Path
    environment: dict[str, str]
    launched: boot.Launched


@dataclass
class Arms:
    subject: Subject
    benchmark: Benchmark
    prompts: tuple[Prompt, ...]
    prompts_sha256: str
    place: Place
    report: Reporter
    total: int
    """Prompts over all arms, for progress."""
    done: int = 0
    _boots: int = 0
    _hashed: dict[Path, Directory] = field(default_factory=dict)

    @cached_property
    def engine(self) -> str:
        """Build of the engine. ProblemError("engine-unavailable") without one."""
        build = engine_build()
        if build == NO_ENGINE:
            raise ProblemError("engine-unavailable", "no vLLM is installed beside this worker")
        return build

    @property
    def cpu(self) -> bool:
        return self.engine.startswith(CPU_ENGINE)

    @cached_property
    def args(self) -> dict[str, Any]:
        return engine_args(self.benchmark, self.subject.target_config, self.subject.drafter, cpu=self.cpu)

    def choose(self, name: ArmName) -> Choice:
        """ProblemError for what cannot be run, before anything is."""
        family = None if name is ArmName.NONE else self.subject.drafter.family
        quantized = name is ArmName.VARIANT
        drafter = {ArmName.CONTROL: self.subject.source, ArmName.VARIANT: self.subject.variant}.get(name)
        speculative = None
        if drafter is not None:
            names = self.subject.checkpoint.tensors
            speculative = speculative_config(self.subject.drafter, names, drafter.folder, self.benchmark)
        temperature, embedded = self.benchmark.temperature, self.subject.embedded
        way = route(family, quantized=quantized, temperature=temperature, cpu=self.cpu, embedded=embedded)
        return Choice(name, drafter, quantized, speculative, way, self.subject.target_of(name))

    def key(self, choice: Choice) -> str:
        """Digest of all that decides the arm's counts. Of the control: what makes one reusable."""
        drafter, speculative = choice.drafter, choice.speculative
        return digest(
            {
                "arm": choice.name.value,
                "target": digest(choice.target.manifest),
                "drafter": None if drafter is None else digest(drafter.manifest),
                "speculative": speculative and {name: value for name, value in speculative.items() if name != "model"},
                "prompts": self.prompts_sha256,
                "temperature": self.benchmark.temperature,
                "concurrency": self.benchmark.concurrency,
                "engine_args": self.args,
                "engine_env": self.benchmark.engine_env,
                "route": choice.route.environment,
                "engine": self.engine,
                "host": host().class_,
                "bench": bench_build(),
            }
        )

    def run(self, name: ArmName, repeats: int = 1) -> tuple[Arm, ...]:
        """The arm's runs: those of an earlier job under the same key, unless the benchmark wants them fresh."""
        choice, measured = self.choose(name), Measured(self.place.data_dir)
        key = self.key(choice)
        with measured.alone(key, lambda: self.report.log("info", f"another job measures the {name}; waiting for it")):
            arms = () if self.benchmark.fresh else measured.find(key, repeats)
            if arms:
                self.report.log("info", f"{name} was measured before: {', '.join(arm.receipt for arm in arms)}")
                self._advance(self.done + repeats * len(self.prompts))
                return arms
            arms = tuple(self._measure(choice) for _ in range(repeats))
            measured.keep(key, arms)
            return arms

    def _advance(self, done: int) -> None:
        self.done = done
        self.report.progress(done, self.total, "prompts")

    def _measure(self, choice: Choice) -> Arm:
        """Boot the engine, run the prompts, seal the receipt. ProblemError when there is no number to trust."""
        # Before the boot: what it read is what was there.
        files = {directory.folder: self._hash(directory) for directory in choice.directories}
        with turn(self.place.data_dir, self.place.devices, self.report):
            self._require_memory(choice)
            booted = self._boot(choice)
        receipt = self._seal(booted, self._seen(choice, booted, files), choice)
        return make_arm(choice.name, receipt, booted.launched.result, booted.launched.seconds)

    def _request(self, choice: Choice) -> EngineRequest:
        return EngineRequest(
            target=choice.target.folder,
            engine_args=self.args,
            speculative_config=choice.speculative,
            prompts=self.prompts,
            warm_up=WARM_UP,
            chat_template=self.benchmark.prompts.chat_template == "auto",
            max_tokens=self.benchmark.prompts.max_tokens,
            temperature=self.benchmark.temperature,
            seed=self.benchmark.engine_args.seed,
            concurrency=self.benchmark.concurrency,
        )

    def _boot(self, choice: Choice) -> Booted:
        home = self.place.scratch / f"boot-{self._boots}"
        route = choice.route.environment | devices.visible(self.place.devices)
        environment = engine_environment(home, route, self.benchmark.engine_env, cpu=self.cpu)
        opened = self.place.archive.open(self._request(choice).model_dump_json().encode())
        self._boots += 1
        self.report.log("info", f"boot {opened.id}: {choice.name}")
        kept, cache = self.place.data_dir / "cache" / "vllm" / self.engine, Path(environment["VLLM_CACHE_ROOT"])
        model_infos.bring(kept / model_infos.FOLDER, cache)
        before = self.done
        try:
            launched = boot.launch(
                opened, environment, home, self.place.boot_seconds, lambda done: self._advance(before + done)
            )
        except boot.EngineKilledError:
            # It reads as what it is: a boot that was opened and never ended.
            raise
        except ProblemError:
            opened.fail()
            raise
        model_infos.keep(cache, kept / model_infos.FOLDER)
        self._advance(before + len(self.prompts))
        return Booted(opened, home, environment, launched)

    def _seen(self, choice: Choice, booted: Booted, files: Mapping[Path, Directory]) -> collect.Seen:
        result = booted.launched.result
        exited = PhaseRecord(name=Phase.EXITED, at=booted.launched.ended)
        roots = {"target": choice.target.folder, "boot": booted.home, "data": self.place.data_dir}
        return collect.Seen(
            arm=choice.name,
            phases=(*result.phases, exited),
            argv=booted.launched.argv,
            environ=self._own_environment(booted),
            speculative_config=choice.speculative,
            engine_config=result.engine_config,
            target=_checkpointed(files[choice.target.folder]),
            drafter=None if choice.drafter is None else _checkpointed(files[choice.drafter.folder]),
            view=result.view,
            counts=result.counts,
            output_sha256=output_sha256(result.prompts),
            prompts_sha256=self.prompts_sha256,
            roots=roots if choice.drafter is None else roots | {"drafter": choice.drafter.folder},
            plugins=result.plugins,
            timings={**result.timings, "process": booted.launched.seconds},
            job=self.place.job,
            attempt=self.place.attempt,
            devices=self.place.devices,
        )

    def _own_environment(self, booted: Booted) -> dict[str, str]:
        """Without the GPU that happened to be free: the same job gives the same receipt on another."""
        happened = devices.visible(self.place.devices).keys() - self.benchmark.engine_env.keys()
        return {name: value for name, value in booted.environment.items() if name not in happened}

    def _seal(self, booted: Booted, seen: collect.Seen, choice: Choice) -> Receipt:
        opened = booted.opened
        receipt = collect.collect(opened, seen)
        judged = rules.validate(receipt, self._expected(choice))
        receipt = receipt.model_copy(update={"rules": judged})
        opened.seal(receipt)
        if choice.drafter is not None and (receipt.counts is None or receipt.counts.drafts == 0):
            raise ProblemError("no-drafts", f"boot {opened.id} ({choice.name}) drafted nothing")
        broken = [rule for rule in judged if not rule.passed]
        if broken:
            offenders: list[Offender] = []
            for rule in broken:
                offenders.append(Offender(where=rule.rule, message=rule.detail))
                offenders += rule.offenders
            names = ", ".join(rule.rule for rule in broken)
            raise ProblemError("receipt-invalid", f"boot {opened.id} ({choice.name}) breaks {names}", offenders[:100])
        return receipt

    def _expected(self, choice: Choice) -> Expected:
        subject = self.subject
        alone = Expected(choice.target.given, subject.target_layers, subject.target_vocab, embedded=subject.embedded)
        if choice.drafter is None:
            return alone
        return replace(
            alone,
            drafter=subject.drafter,
            drafter_files=choice.drafter.given,
            plan=subject.plan if choice.quantized else None,
            num_speculative_tokens=self.benchmark.num_speculative_tokens,
            draft_map_sha256=subject.draft_map,
        )

    def _require_memory(self, choice: Choice) -> None:
        args, cache = self.benchmark.engine_args, cache_bytes(self.benchmark.engine_env)
        weights = sum(directory.weight_bytes for directory in choice.directories)
        shown = devices.visible(self.place.devices).get(devices.VISIBLE)
        memory.require(weights, cache, args.gpu_memory_utilization, args.tensor_parallel_size or 1, shown)

    def _hash(self, directory: Directory) -> Directory:
        """The directory with its manifest made from the bytes that are there, once per job."""
        if directory.folder not in self._hashed:
            files = [file.path for file in directory.manifest.files]
            self._hashed[directory.folder] = replace(directory, manifest=make_manifest(directory.folder, files))
        return self._hashed[directory.folder]


def _checkpointed(directory: Directory) -> Checkpointed:
    return collect.checkpointed(
        directory.manifest,
        repo=directory.repo,
        commit=directory.commit,
        path=directory.folder,
        variant=directory.variant,
    )
