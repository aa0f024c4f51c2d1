"""What makes an arm another measurement, and what of a boot is never a number."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from draftmill.archive import Archive
from draftmill.benchmarks import Arm, ArmName, Benchmark, PromptSet
from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions, RepoSource
from draftmill.plans import Plan
from draftmill.problems import ProblemError
from draftmill.receipts import Phase, PhaseRecord
from draftmill_worker.bench import boot, prompts
from draftmill_worker.bench.arm import compared, make_arm
from draftmill_worker.bench.arms import Arms, Choice, Place
from draftmill_worker.bench.pair import check_pair
from draftmill_worker.bench.subject import Directory, Subject
from draftmill_worker.bench.wire import EngineResult
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.mill import Switches, mill
from draftmill_worker.receipts.archive import ArchiveWriter
from tests.unit.bench.arms import counts, prompt
from tests.unit.bench.test_measured import sealed
from tests.unit.receipts.good import good
from tests.unit.receipts.heads import MemoryHeads

PROMPTS = prompts.load(PromptSet(limit=2), None)
NOW = datetime(2026, 11, 30, tzinfo=UTC)


class Quiet:
    def progress(self, done: int, total: int, unit: str) -> None:
        return

    def log(self, level: str, message: str) -> None:
        return


@dataclass
class Bench:
    models: Path
    folder: Path

    def subject(self, target: str = "target", source: str = "eagle3") -> Subject:
        out = self.folder / f"{source}-variant"
        if not out.exists():
            switches = Switches(verify=False, fsync=False)
            options = QuantizeOptions()
            mill(self.models / source, out, Format.FP8_PC_PT, options, switches=switches, progress=lambda *_: None)
        plan = Plan.model_validate_json((out / "plan.json").read_bytes())
        return Subject(*(_directory(path) for path in (self.models / target, self.models / source, out)), plan)

    def arms(self, subject: Subject | None = None, **fields: Any) -> Arms:
        benchmark = Benchmark.model_validate(
            {"target": RepoSource(repo="org/target"), "num_speculative_tokens": 3} | fields
        )
        archive = ArchiveWriter(self.folder / "receipts", "tester", MemoryHeads())
        place = Place(self.folder, self.folder / "scratch", archive, 60.0)
        sha256 = prompts.sha256(PROMPTS, benchmark.prompts)
        return Arms(subject or self.subject(), benchmark, PROMPTS, sha256, place, Quiet(), total=2)

    def key(self, name: ArmName, subject: Subject | None = None, **fields: Any) -> str:
        arms = self.arms(subject, **fields)
        return arms.key(arms.choose(name))


def _directory(folder: Path) -> Directory:
    return Directory(folder, make_manifest(folder), None, None)


@pytest.fixture
def bench(models: Path, tmp_path: Path) -> Bench:
    pytest.importorskip("vllm", exc_type=ImportError)
    return Bench(models, tmp_path)


def test_all_that_decides_the_counts_is_in_the_key(bench: Bench) -> None:
    same = bench.key(ArmName.CONTROL)
    assert bench.key(ArmName.CONTROL) == same
    # The gate judges afterwards, and what a control is compared with does not change it.
    assert bench.key(ArmName.CONTROL, gate={"min_al": 2.0}, no_speculation=False, repeats=3) == same
    others = [
        {"num_speculative_tokens": 2},
        {"temperature": 0.5},
        {"concurrency": 2},
        {"prompts": {"max_tokens": 64}},
        {"engine_args": {"kv_cache_dtype": "fp8"}},
        {"engine_args": {"max_model_len": 512}},
        {"engine_env": {"OMP_NUM_THREADS": "1"}},
    ]
    keys = [bench.key(ArmName.CONTROL, **fields) for fields in others]
    assert len({same, bench.key(ArmName.VARIANT), bench.key(ArmName.NONE), *keys}) == 3 + len(others)


def test_other_bytes_are_another_measurement(bench: Bench) -> None:
    subject = bench.subject()
    files = subject.variant.manifest.files
    changed = subject.variant.manifest.model_copy(
        update={"files": (files[0].model_copy(update={"sha256": "0" * 64}), *files[1:])}
    )
    other = replace(subject, variant=replace(subject.variant, manifest=changed))
    assert bench.key(ArmName.VARIANT, other) != bench.key(ArmName.VARIANT, subject)
    assert bench.key(ArmName.CONTROL, other) == bench.key(ArmName.CONTROL, subject)


def test_arms_differ_in_the_drafter_alone(bench: Bench) -> None:
    arms = bench.arms(engine_args={"kv_cache_dtype": "auto"})
    requests = [arms._request(arms.choose(name)).model_dump(exclude={"speculative_config"}) for name in ArmName]
    assert requests[0] == requests[1] == requests[2]
    control, variant = (arms.choose(name).speculative or {} for name in (ArmName.CONTROL, ArmName.VARIANT))
    assert {name for name in variant if variant.get(name) != control.get(name)} == {"model", "quantization"}


def _launched(drafts: int) -> boot.Launched:
    counted = counts(drafts, 0, 0, 0)
    phases = tuple(PhaseRecord(name=phase, at=NOW) for phase in (Phase.LOADED, Phase.MEASURED))
    result = EngineResult(
        phases=phases,
        prompts=tuple(prompt(one.id, counted) for one in PROMPTS),
        counts=counted,
        timings={"run": 1.0, "load": 1.0},
    )
    return boot.Launched(("python",), result, NOW, 2.0)


@pytest.mark.parametrize(("drafts", "slug"), [(0, "no-drafts"), (5, "receipt-invalid")])
def test_a_boot_that_proves_nothing_gives_no_number(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, drafts: int, slug: str
) -> None:
    """The second one drafted, and nothing was seen from inside the engine."""
    monkeypatch.setattr(boot, "launch", lambda *_: _launched(drafts))
    with pytest.raises(ProblemError) as caught:
        bench.arms().run(ArmName.CONTROL)
    assert caught.value.problem.slug == slug
    (kept,) = Archive(bench.folder / "receipts").summaries()
    assert kept.failed_rules
    assert not list((bench.folder / "arms").glob("*"))


def test_jobs_at_the_same_time_measure_a_control_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is in its boot when the second asks, which waits, and reuses what the first sealed."""
    booting, asked, noted = threading.Event(), threading.Event(), list[str]()

    class Noting(Quiet):
        def log(self, level: str, message: str) -> None:
            noted.append(message)
            if "waiting" in message:
                asked.set()

    def measure(arms: Arms, choice: Choice) -> Arm:
        booting.set()
        assert asked.wait(30)
        return sealed(bench.folder)

    monkeypatch.setattr(Arms, "_measure", measure)
    subject = bench.subject()
    first, second = bench.arms(subject), replace(bench.arms(subject), report=Noting())
    with ThreadPoolExecutor() as pool:
        one = pool.submit(first.run, ArmName.CONTROL)
        assert booting.wait(30)
        other = pool.submit(second.run, ArmName.CONTROL)
        (measured,), (reused,) = one.result(60), other.result(60)
    assert (measured.reused, reused.reused) == (False, True)
    assert reused.receipt == measured.receipt
    assert len(list(Archive(bench.folder / "receipts").summaries())) == 1
    assert [message.partition(";")[0].partition(":")[0] for message in noted] == [
        "another job measures the control",
        "control was measured before",
    ]


def test_an_arm_by_category_and_beside_the_target_alone(tmp_path: Path) -> None:
    results = (
        prompt("a", counts(10, 9), output="x", category="code"),
        prompt("b", counts(10, 2), output="y", category="prose"),
        prompt("c", counts(30, 3), output="z", category="prose"),
    )
    receipt = good(tmp_path, format=None).receipt
    found = EngineResult(prompts=results, counts=counts(50, 14), timings={"run": 2.0})
    arm = make_arm(ArmName.CONTROL, receipt, found, 5.0)
    assert arm.al == pytest.approx(1.28)
    assert arm.al_by_category == pytest.approx({"code": 1.9, "prose": 1.125})
    assert (arm.boot_seconds, arm.tokens_per_second) == (3.0, 30.0)
    emulated = make_arm(ArmName.CONTROL, receipt.model_copy(update={"emulated": True}), found, 5.0)
    assert emulated.tokens_per_second is None

    alone = make_arm(
        ArmName.NONE,
        receipt,
        EngineResult(prompts=(*results[:2], prompt("c", None, output="other")), timings={"run": 1.0}),
        2.0,
    )
    assert compared(arm, alone).parts_from_none == ("c",)
    assert compared(arm, None).parts_from_none is None


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"vocab_size": 1088}, {"source/vocab_size"}),
        ({"vocab_size": 32000}, {"source/vocab_size"}),
        ({"num_hidden_layers": 2}, {"source/target_layer_ids"}),
        ({"num_hidden_layers": 2, "vocab_size": 50000}, {"source/vocab_size", "source/target_layer_ids"}),
    ],
)
def test_c94_a_pair_that_does_not_belong_together(bench: Bench, change: dict[str, int], where: set[str]) -> None:
    subject = bench.subject()
    check_pair(subject)
    subject.target_config.update(change)
    with pytest.raises(ProblemError) as caught:
        check_pair(subject)
    assert caught.value.problem.slug == "pair-mismatch"
    assert {offender.where for offender in caught.value.problem.offenders} == where
    assert ("padded" in caught.value.problem.detail) == (change.get("vocab_size") == 1088)
