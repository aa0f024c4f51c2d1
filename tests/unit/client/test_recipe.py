"""Recipes and the benchmark's options: a job spec from a file and from words."""

from pathlib import Path

import pytest

from draftmill import JobSpec
from draftmill.cli.request import BenchmarkWords, Request, UsageProblemError, job_spec

RECIPES = Path(__file__).parents[3] / "recipes"
NEMOTRON = "dspark-nemotron-3.5-lightning-30b-a3b.yaml"


def _spec(source: str | None = None, format: str | None = None, **fields: object) -> JobSpec:
    return job_spec(Request(source, format)._replace(**fields))


def _wrong(source: str | None = None, format: str | None = None, **fields: object) -> set[str]:
    with pytest.raises(UsageProblemError) as caught:
        _spec(source, format, **fields)
    return {offender.where for offender in caught.value.problem.offenders}


def test_the_recipe_for_qwen3() -> None:
    spec = _spec(recipe=str(RECIPES / "dspark-qwen3-8b.yaml"))
    assert spec.benchmark is not None
    assert (spec.benchmark.num_speculative_tokens, spec.benchmark.temperature) == (7, 0)
    assert spec.quantize.exclude == ("*q_proj*", "*k_proj*", "*v_proj*")


def test_the_recipe_for_nemotron_takes_the_drafter_from_the_command_line() -> None:
    path = str(RECIPES / NEMOTRON)
    assert _wrong(recipe=path) == {"REPO|PATH"}
    spec = _spec("org/drafter", recipe=path)
    assert spec.benchmark is not None
    args = spec.benchmark.engine_args
    assert (args.tensor_parallel_size, args.mamba_backend, args.mamba_ssm_cache_dtype) == (8, "flashinfer", "float16")
    assert args.enable_mamba_cache_stochastic_rounding is True
    assert spec.benchmark.engine_env == {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}


def test_every_recipe_is_a_job() -> None:
    for path in RECIPES.glob("*.yaml"):
        spec = _spec("org/drafter", recipe=str(path))
        assert spec.benchmark is not None or spec.head is not None, path.name


def test_the_command_line_wins_over_the_recipe() -> None:
    words = BenchmarkWords(num_speculative_tokens=3, max_al_drop=0.2, target="/models/t", prompt_limit=9)
    spec = _spec("org/mine", "nvfp4", lm_head=True, benchmark=words, recipe=str(RECIPES / "dspark-qwen3-8b.yaml"))
    assert spec.source.model_dump() == {"repo": "org/mine", "revision": "main"}
    assert (spec.format, spec.quantize.lm_head) == ("nvfp4", True)
    assert spec.quantize.exclude == ("*q_proj*", "*k_proj*", "*v_proj*")
    assert spec.benchmark is not None
    assert spec.benchmark.target.model_dump() == {"path": "/models/t"}
    assert (spec.benchmark.num_speculative_tokens, spec.benchmark.gate.max_al_drop) == (3, 0.2)
    assert (spec.benchmark.prompts.limit, spec.benchmark.prompts.max_tokens) == (9, 512)


def test_words_alone_make_a_benchmark() -> None:
    words = BenchmarkWords("org/target", "v2", 4, categories=("code",), prompts="./mine.jsonl")
    spec = _spec("org/drafter", "fp8", benchmark=words)
    assert spec.benchmark is not None
    assert spec.benchmark.target.model_dump() == {"repo": "org/target", "revision": "v2"}
    assert spec.benchmark.prompts.path is not None
    assert spec.benchmark.prompts.path.path == str(Path("mine.jsonl").resolve())
    assert _spec("org/drafter", "fp8").benchmark is None


def test_what_is_wrong_is_named_by_its_option() -> None:
    assert _wrong("org/d", "fp8", benchmark=BenchmarkWords(num_speculative_tokens=4)) == {"--target"}
    assert _wrong("org/d", "fp8", benchmark=BenchmarkWords("org/t")) == {"--num-speculative-tokens"}
    assert _wrong("org/d", "fp8", benchmark=BenchmarkWords("a//b", None, 0, 7.0)) == {
        "--target",
        "--num-speculative-tokens",
        "--max-al-drop",
    }
    assert _wrong() == {"REPO|PATH", "--format"}


@pytest.mark.parametrize("text", ["", "- a", "a: [", "{", "a: !!python/object/apply:os.getcwd []"])
def test_a_recipe_that_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    assert "--recipe" in _wrong("org/d", "fp8", recipe=str(path))
    assert "--recipe" in _wrong("org/d", "fp8", recipe=str(tmp_path / "missing.yaml"))


def test_json_is_a_recipe_too(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(_spec("org/d", "fp8").model_dump_json())
    assert _spec(recipe=str(path)) == _spec("org/d", "fp8")
