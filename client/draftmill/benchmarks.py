"""Acceptance length measured in an engine: what a job asks for, and what an arm, a comparison and a gate say."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from draftmill._model import Model
from draftmill.sources import PathSource, RepoSource, Sha256

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:/ -]{1,128}$")]


class EngineArgs(Model):
    """What may be passed to the engine. An unknown key is refused: a setting that is dropped in silence changes the
    result. Names are vLLM's own; None leaves the engine's default."""

    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] | None = None
    max_model_len: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] | None = None
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    block_size: Annotated[int, Field(ge=1, le=1024)] | None = None
    kv_cache_dtype: Identifier | None = None
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    quantization: Identifier | None = None
    enforce_eager: bool | None = None
    attention_backend: Identifier | None = None
    trust_remote_code: bool = False
    """Only for repositories the operator allow-lists."""
    mamba_backend: Identifier | None = None
    mamba_cache_dtype: Identifier | None = None
    mamba_ssm_cache_dtype: Identifier | None = None
    mamba_block_size: Annotated[int, Field(ge=1)] | None = None
    mamba_cache_mode: Identifier | None = None
    mamba_ssu_algorithm: Identifier | None = None
    enable_mamba_shared_prefix_checkpoint: bool | None = None
    enable_mamba_cache_stochastic_rounding: bool | None = None
    mamba_cache_philox_rounds: Annotated[int, Field(ge=0)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0


EngineEnv = Literal[
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_USE_FLASHINFER_SAMPLER",
    "VLLM_LOGGING_LEVEL",
    "FLASHINFER_DISABLE_VERSION_CHECK",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
]
"""Environment variables a job may set for the engine. All are recorded in the receipt."""


class PromptSet(Model):
    """Which prompts are run: `builtin`, `path` or `repo`; draftmill-1, which ships, when none is named."""

    builtin: Literal["draftmill-1"] | None = None
    path: PathSource | None = None
    """JSON lines with `prompt` or `turns` or `messages`, and optionally `category` and `id`."""
    repo: RepoSource | None = None
    """A Hub dataset repository."""
    file: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]{0,255}$")] | None = None
    """The file of `repo`."""
    categories: tuple[Identifier, ...] = ()
    """Only these; empty means all."""
    limit: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """At most this many, taken round robin over categories."""
    max_tokens: Annotated[int, Field(ge=2, le=65_536)] = 128
    chat_template: Literal["auto", "never"] = "auto"
    """`auto` applies the target's chat template where it has one."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(value is not None for value in (self.builtin, self.path, self.repo)) > 1:
            raise PydanticCustomError("prompt_source", "must have only one of `builtin`, `path` and `repo`")
        if (self.file is None) != (self.repo is None):
            raise PydanticCustomError("prompt_file", "`file` names the file of `repo`: both or none")
        return self


class Gate(Model):
    """The rule a variant must pass."""

    max_al_drop: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Largest tolerated relative fall in accepted tokens per draft, judged by the interval's lower bound."""
    min_al: Annotated[float, Field(ge=1)] | None = None
    min_control_al: Annotated[float, Field(ge=1)] | None = None
    """A control below this says nothing about a variant."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95


class Benchmark(Model):
    target: RepoSource | PathSource
    num_speculative_tokens: Annotated[int, Field(ge=1, le=64)]
    prompts: PromptSet = PromptSet(builtin="draftmill-1")
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 1
    """Prompts in flight together. Above 1 the engine's counters are those of a group of prompts, not of each."""
    repeats: Annotated[int, Field(ge=1, le=10)] = 1
    """Runs of the control; the spread is reported."""
    no_speculation: bool = True
    """Also run the target alone, to compare outputs."""
    engine_args: EngineArgs = EngineArgs()
    engine_env: dict[EngineEnv, Annotated[str, StringConstraints(max_length=256)]] = Field(default_factory=dict)
    draft_quantization: Identifier | None = None
    """Overrides what the drafter's own config says; `none` passes nothing."""
    gate: Gate = Gate()
    fresh: bool = False
    """Measure every arm in this job, also those measured before under an equal key."""


class ArmName(StrEnum):
    NONE = "none"
    CONTROL = "control"
    VARIANT = "variant"


class Counts(Model):
    """Differenced engine counters: `vllm:spec_decode_num_drafts` and its siblings."""

    drafts: int
    draft_tokens: int
    accepted: int
    accepted_per_position: tuple[int, ...]


class PromptResult(Model):
    id: str
    category: str
    prompt_tokens: int
    output_tokens: int
    output_sha256: Sha256
    """Of the token ids."""
    counts: Counts | None
    """None without speculation, and where prompts ran in groups."""


class GroupResult(Model):
    """Prompts of one category that were in flight together, counted as one."""

    ids: tuple[str, ...]
    category: str
    counts: Counts | None


class Arm(Model):
    name: ArmName
    receipt: str
    """Boot id of the receipt that proves it."""
    reused: bool = False
    """Taken from the archive for an equal key."""
    prompts: tuple[PromptResult, ...]
    groups: tuple[GroupResult, ...] = ()
    """What was counted: with concurrency 1 each prompt is a group of its own, and listed in `prompts` alone."""
    counts: Counts | None
    """Sum over the measured prompts; None without speculation."""
    al: float | None
    al_by_category: dict[str, float] = Field(default_factory=dict)
    conditional_acceptance: tuple[float, ...] = ()
    """Acceptance at position i given that positions before it were accepted."""
    output_sha256: Sha256
    parts_from_none: tuple[str, ...] | None = None
    """Ids of prompts whose output differs from the run without speculation; None where there was none."""
    emulated: bool = False
    runner: str = ""
    boot_seconds: float = 0.0
    run_seconds: float = 0.0
    tokens_per_second: float | None = None
    """None where kernels are emulated: it would say nothing."""


class Interval(Model):
    value: float
    low: float
    high: float
    confidence: float


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"


class GateResult(Model):
    verdict: Verdict
    rule: Gate
    failures: tuple[str, ...] = ()


class Acceptance(Model):
    """Evidence of one benchmark: `evidence/<variant>/<job>/acceptance.json`."""

    schema_: Literal["draftmill.acceptance/v1"] = Field(default="draftmill.acceptance/v1", alias="schema")
    benchmark: Benchmark
    prompts_sha256: Sha256
    control_key: Sha256
    """Digest of what makes a control reusable: target, drafter, prompts, engine arguments, engine build, host class."""
    none: Arm | None
    control: Arm
    control_repeats: tuple[Arm, ...] = ()
    variant: Arm
    change: Interval
    """Relative change of accepted tokens per draft, variant against control; paired bootstrap over prompts."""
    control_spread: float | None = None
    """Largest relative difference of accepted tokens per draft among control runs."""
    gate: GateResult
    notes: dict[str, JsonValue] = Field(default_factory=dict)
