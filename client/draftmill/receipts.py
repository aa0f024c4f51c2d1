"""The receipt: what one boot of an engine recorded. Append-only, chained per writer."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, StringConstraints

from draftmill._model import Model
from draftmill.benchmarks import ArmName, Counts
from draftmill.problems import Offender
from draftmill.reports import ManifestFile
from draftmill.sources import Commit, Instant, Sha256

BootId = Annotated[str, StringConstraints(pattern=r"^b[0-9a-f]{32}$")]
Volatile: dict[str, JsonValue] = {"draftmill:volatile": True}
"""Marks a field that differs between two equal runs: times, ids, ports, rates, cache sizes, chain hashes."""


class Phase(StrEnum):
    LOADED = "loaded"
    SHARED = "shared"
    """Head and embeddings of the target are shared with the drafter, where the engine does that."""
    MEASURED = "measured"
    EXITED = "exited"


class PhaseRecord(Model):
    name: Phase
    at: Instant = Field(json_schema_extra=Volatile)


class Checkpointed(Model):
    """A model directory as it was given to the engine."""

    source: str
    """Repository or, for a local path, its last component."""
    commit: Commit | None
    variant: Sha256 | None = None
    files: tuple[ManifestFile, ...]


class ModuleRecord(Model):
    """One module of the drafter as it is inside the engine after loading."""

    name: str
    class_name: str
    method: str | None
    """Class of its `quant_method`."""
    kernel: str | None
    """Class of the kernel that the method really uses."""
    weight_dtype: str | None
    weight_shape: tuple[int, ...]
    prefix: str | None = None
    """What the engine asked its quantization config for: draft layers counted on from the target's last one."""
    scheme: dict[str, str | None] = Field(default_factory=dict)
    """`weight` and `activation` of the method's `spec`, as the engine writes them; None for an activation that is not
    quantized. One class of vLLM 0.32 serves every ModelOpt format, so its name alone says little."""
    scales: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Per scale parameter: dtype, shape, min, max, finite, sentinel."""


class HeadRecord(Model):
    class_name: str
    method: str | None
    kernel: str | None
    dtype: str
    shape: tuple[int, ...]
    finite: bool
    scale_positive: bool | None
    shares_target_head: bool
    shares_target_embedding: bool


class EmbeddingRecord(Model):
    class_name: str
    dtype: str
    shape: tuple[int, ...]
    shares_target_embedding: bool


class DraftHeadRecord(Model):
    """A draft head that was quantized on loading (DRAFTMILL_FP8_DRAFT_HEAD), as it is inside the engine. None and empty
    stand for what was not recorded, which is wrong."""

    asked: str | None = None
    """What the variable said, in the engine."""
    spec: str | None = None
    """What the weight was quantized to, as vLLM names it."""
    conditions: dict[str, bool] = Field(default_factory=dict)
    """Under which the request was met, by name."""
    tensor_parallel_size: int | None = None
    hidden_size: int | None = None
    """Of the drafter, by its configuration."""
    vocab_size: int | None = None
    partition: tuple[int, ...] = ()
    """Rows and columns that the head was built for, on this rank."""
    class_name: str | None = None
    """With its module, as are the methods."""
    prefix: str | None = None
    method: str | None = None
    kernel: str | None = None
    weight_dtype: str | None = None
    weight_shape: tuple[int, ...] = ()
    scale: tuple[float, ...] = ()
    """At most its first 16 values."""
    shares_draft_embedding: bool | None = None
    shares_target_embedding: bool | None = None
    draft_embedding_shares_target: bool | None = None
    draft_embedding_dtype: str | None = None
    target_head_dtype: str | None = None
    target_head_method: str | None = None


class DraftMapRecord(Model):
    """The map from draft ids to target ids (`d2t`) as the engine holds it."""

    size: int
    sha256: Sha256
    """Of its values as little-endian int64."""


class EngineView(Model):
    """What the worker extension saw from inside the engine."""

    runner: str
    """`v1`, `v2` or `v1+plugin`."""
    proposer: str
    drafter_class: str | None
    modules: tuple[ModuleRecord, ...] = ()
    head: HeadRecord | None = None
    embedding: EmbeddingRecord | None = None
    draft_head: DraftHeadRecord | None = None
    """None where no head was to be quantized on loading."""
    draft_map: DraftMapRecord | None = None
    """None where the drafter has the target's vocabulary."""
    target_methods: dict[str, int] = Field(default_factory=dict)
    """Modules of the target that multiply, counted by the class of their quantization method."""
    target_digest_before: Sha256 | None = None
    """Digest of sampled target parameters after loading the target and after loading the drafter."""
    target_digest_after: Sha256 | None = None
    kv_cache_tokens: int | None = Field(default=None, json_schema_extra=Volatile)


class Host(Model):
    class_: str = Field(alias="class")
    """Digest of what makes two hosts comparable: processor or GPU model, count, instruction sets."""
    cpu: str
    cpu_count: int
    gpus: tuple[str, ...] = ()
    memory_bytes: int = Field(json_schema_extra=Volatile)
    kernel: str = Field(json_schema_extra=Volatile)


class ChainLink(Model):
    writer: str = Field(json_schema_extra=Volatile)
    sequence: int = Field(json_schema_extra=Volatile)
    previous: Sha256 | None = Field(default=None, json_schema_extra=Volatile)


class RuleResult(Model):
    rule: str
    passed: bool
    detail: str
    offenders: tuple[Offender, ...] = ()


class Receipt(Model):
    schema_: Literal["draftmill.receipt/v1"] = Field(default="draftmill.receipt/v1", alias="schema")
    boot: BootId = Field(json_schema_extra=Volatile)
    job: str | None = Field(default=None, json_schema_extra=Volatile)
    attempt: int | None = Field(default=None, json_schema_extra=Volatile)
    arm: ArmName
    phases: tuple[PhaseRecord, ...]
    versions: dict[str, str]
    engine_build: str
    """Identity of the engine build: distribution, version and digest of its installed record."""
    host: Host
    argv: tuple[str, ...] = Field(json_schema_extra=Volatile)
    speculative_config: dict[str, Any] | None
    """As asked for, with model paths replaced by `drafter`."""
    engine_config: dict[str, Any]
    """As resolved by the engine, with paths and addresses left out."""
    environment: dict[str, str]
    """Allow-listed variables only."""
    devices: tuple[str, ...] = Field(default=(), json_schema_extra=Volatile)
    """What the engine had to itself: `cpu`, or GPUs as nvidia-smi numbers them."""
    target: Checkpointed
    drafter: Checkpointed | None
    view: EngineView | None
    counts: Counts | None
    output_sha256: Sha256 | None
    prompts_sha256: Sha256
    emulated: bool
    plugins: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Distinct warning lines of the engine's log, without times and process ids."""
    timings: dict[str, float] = Field(default_factory=dict, json_schema_extra=Volatile)
    rules: tuple[RuleResult, ...]
    """Validation: every rule by name, failed ones first. A receipt with a failed rule is kept and fails its job."""
    chain: ChainLink = Field(json_schema_extra=Volatile)


class BootState(StrEnum):
    SEALED = "sealed"
    """It ended in order, and there is a receipt."""
    FAILED = "failed"
    """It ended in order, without a receipt: what the engine said is kept."""
    INCOMPLETE = "incomplete"
    """It was opened and never ended: the boot died, or goes on."""


class ReceiptSummary(Model):
    """One boot in a list. What comes from the receipt is None where there is none."""

    boot: BootId
    opened_at: Instant
    state: BootState
    job: str | None = None
    attempt: int | None = None
    arm: ArmName | None = None
    target: str | None = None
    drafter: str | None = None
    variant: Sha256 | None = None
    counts: Counts | None = None
    emulated: bool | None = None
    engine_build: str | None = None
    failed_rules: tuple[str, ...] = ()


class ReceiptPage(Model):
    items: tuple[ReceiptSummary, ...]
    next_cursor: str | None = None


class Change(Model):
    """One value that differs. None stands for one that is not there."""

    path: str
    """Such as `view.modules[model.fc].kernel`: list items by their name or path where they have one."""
    a: JsonValue
    b: JsonValue
    volatile: bool = False


class ReceiptDiff(Model):
    a: BootId
    b: BootId
    changes: tuple[Change, ...]


class ChainHead(Model):
    """The newest entry of a writer's chain, as committed to the ledger."""

    writer: str
    sequence: int
    sha256: Sha256
    """Of the entry's line."""


class ChainHeads(Model):
    items: tuple[ChainHead, ...]
