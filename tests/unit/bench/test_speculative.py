"""What the engine is told of each family, and what it is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from draftmill.benchmarks import Benchmark, EngineArgs
from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions, RepoSource
from draftmill.plans import Family
from draftmill.problems import ProblemError
from draftmill_worker.bench.engine_args import check_remote_code, engine_args
from draftmill_worker.bench.engine_env import cache_bytes
from draftmill_worker.bench.speculative import check_length, route, speculative_config
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.drafter import Drafter
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.mill import Switches, mill

TARGET = {"max_position_embeddings": 4096, "text_config": {"max_position_embeddings": 2048}}


def _benchmark(**fields: Any) -> Benchmark:
    return Benchmark.model_validate({"target": RepoSource(repo="org/target"), "num_speculative_tokens": 3} | fields)


def _drafter(models: Path, family: str) -> tuple[Drafter, tuple[str, ...]]:
    checkpoint = open_checkpoint(models / family)
    return detect(checkpoint), tuple(checkpoint.tensors)


@pytest.mark.parametrize(
    ("family", "tokens"), [("eagle3", 3), ("dflash", 3), ("dspark", 4), ("draft_model", 3), ("medusa", 3)]
)
def test_the_control(models: Path, family: str, tokens: int) -> None:
    config = speculative_config(*_drafter(models, family), models / family, _benchmark(num_speculative_tokens=tokens))
    assert config == {
        "method": family,
        "model": str(models / family),
        "num_speculative_tokens": tokens,
        "draft_sample_method": "greedy",
    }


@pytest.mark.parametrize(("format", "method"), [(Format.FP8_PC_PT, "modelopt"), (Format.W4A16_NVFP4, "modelopt_fp4")])
def test_a_variant_names_its_own_quantization(models: Path, tmp_path: Path, format: Format, method: str) -> None:
    out = tmp_path / "variant"
    switches = Switches(verify=False, fsync=False)
    mill(models / "eagle3", out, format, QuantizeOptions(), switches=switches, progress=lambda *_: None)
    reading = _drafter(models, "eagle3")
    assert speculative_config(*reading, out, _benchmark())["quantization"] == method
    assert speculative_config(*reading, out, _benchmark(draft_quantization="fp8"))["quantization"] == "fp8"
    assert "quantization" not in speculative_config(*reading, out, _benchmark(draft_quantization="none"))


def test_drafting_follows_the_temperature(models: Path) -> None:
    config = speculative_config(*_drafter(models, "eagle3"), models / "eagle3", _benchmark(temperature=0.7))
    assert config["draft_sample_method"] == "probabilistic"


@pytest.mark.parametrize(
    ("family", "tokens", "fits"),
    [
        ("dflash", 3, True),
        ("dflash", 1, True),
        ("dflash", 4, False),
        ("dspark", 4, True),
        ("dspark", 3, False),
        ("dspark", 5, False),
        ("eagle3", 9, True),
    ],
)
def test_draft_length(models: Path, family: str, tokens: int, fits: bool) -> None:
    drafter, _ = _drafter(models, family)
    if fits:
        check_length(drafter, tokens)
        return
    with pytest.raises(ProblemError) as caught:
        check_length(drafter, tokens)
    assert caught.value.problem.slug == "draft-length-refused"
    assert caught.value.problem.offenders[0].value == tokens


def test_a_dspark_that_does_not_sample_its_anchor_drafts_one_less(models: Path) -> None:
    drafter, _ = _drafter(models, "dspark")
    check_length(dataclasses.replace(drafter, config=drafter.config | {"sample_from_anchor": False}), 3)


def test_the_window_is_the_shorter_one_unless_a_job_says_otherwise(models: Path) -> None:
    drafter, _ = _drafter(models, "eagle3")
    assert engine_args(_benchmark(), TARGET, drafter, cpu=True)["max_model_len"] == 1024
    longer = _benchmark(engine_args={"max_model_len": 9000})
    assert engine_args(longer, TARGET, drafter, cpu=True)["max_model_len"] == 9000


def test_graphs_are_off_on_a_cpu_and_with_dspark(models: Path) -> None:
    eagle3, dspark = _drafter(models, "eagle3")[0], _drafter(models, "dspark")[0]
    assert engine_args(_benchmark(), TARGET, eagle3, cpu=True)["enforce_eager"] is True
    assert engine_args(_benchmark(), TARGET, eagle3, cpu=False)["enforce_eager"] is False
    assert engine_args(_benchmark(), TARGET, dspark, cpu=False)["enforce_eager"] is True
    asked = _benchmark(engine_args={"enforce_eager": False}, concurrency=7)
    args = engine_args(asked, TARGET, eagle3, cpu=True)
    assert (args["enforce_eager"], args["max_num_seqs"]) == (False, 7)


def test_every_argument_is_one_of_the_engine() -> None:
    arg_utils = pytest.importorskip("vllm.engine.arg_utils")
    known = {field.name for field in dataclasses.fields(arg_utils.EngineArgs)}
    assert EngineArgs.model_fields.keys() <= known


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="mamba_kernel"):
        _benchmark(engine_args={"mamba_kernel": "triton"})
    with pytest.raises(ValueError, match="LD_PRELOAD"):
        _benchmark(engine_env={"LD_PRELOAD": "x.so"})


def test_remote_code_needs_the_operator(models: Path) -> None:
    asked, repos = _benchmark(engine_args={"trust_remote_code": True}), {"target": "org/t", "source": None}
    with pytest.raises(ProblemError) as caught:
        check_remote_code(asked, repos, ("org/t",))
    assert [offender.where for offender in caught.value.problem.offenders] == ["source"]
    check_remote_code(asked, {"target": "org/t", "source": "org/d"}, ("org/t", "org/d"))
    check_remote_code(_benchmark(), repos, ())


def test_routes() -> None:
    plain = route(Family.EAGLE3, quantized=False, temperature=0.0, cpu=True)
    assert plain.features == ()
    assert "DRAFTMILL_VLLM_PLUGIN" not in plain.environment
    assert route(Family.EAGLE3, quantized=True, temperature=0.0, cpu=True).features == ("emulation",)
    assert route(Family.DFLASH, quantized=False, temperature=0.0, cpu=True).features == ("rmsnorm2d",)
    dspark = route(Family.DSPARK, quantized=True, temperature=1.0, cpu=True)
    assert dspark.environment["DRAFTMILL_VLLM_PLUGIN"] == "emulation,dspark,rmsnorm2d,temperature"
    assert route(None, quantized=False, temperature=0.0, cpu=False).environment == {}
    assert route(Family.DSPARK, quantized=True, temperature=0.0, cpu=False).environment == {
        "VLLM_USE_V2_MODEL_RUNNER": "1"
    }


def test_the_cache_is_whole_gibibytes() -> None:
    assert cache_bytes({}) == 1 << 30
    assert cache_bytes({"VLLM_CPU_KVCACHE_SPACE": "4"}) == 4 << 30
    with pytest.raises(ProblemError, match="invalid-request"):
        cache_bytes({"VLLM_CPU_KVCACHE_SPACE": "0.5"})
