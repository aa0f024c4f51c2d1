"""The job: what a caller asks for, what it resolves to, and how it goes."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, computed_field, model_validator
from pydantic_core import PydanticCustomError

from draftmill._model import Model
from draftmill.benchmarks import Acceptance, Benchmark, Interval, Verdict
from draftmill.choices import AUTO, KEEP, Auto
from draftmill.formats import SCALE_SEARCH_FORMATS, Format
from draftmill.heads import CaptureOptions, DraftVocabOptions, HeadOptions
from draftmill.plans import ScaleSearch
from draftmill.problems import Problem
from draftmill.sources import Commit, Instant, PathSource, Repo, RepoSource, Revision, Sha256
from draftmill.states import DONE, JobState, Outcome, Reason, Stage, StageState

__all__ = [
    "JOB_ID",
    "AcceptanceSummary",
    "Attempt",
    "Commit",
    "DeviceWait",
    "Instant",
    "Job",
    "JobPage",
    "JobSpec",
    "PathSource",
    "Progress",
    "QuantizeOptions",
    "Repo",
    "RepoSource",
    "ResolvedSource",
    "ResolvedSpec",
    "Revision",
    "Sha256",
    "StageRecord",
    "Summary",
]


def _not_yet(field: str) -> BeforeValidator:
    def refuse(value: Any) -> Any:
        if value is not None:
            raise PydanticCustomError("field_not_supported", f"this build does not do `{field}` yet; leave it null")
        return value

    return BeforeValidator(refuse)


Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$")]
LabelValue = Annotated[str, StringConstraints(max_length=256)]
JOB_ID = re.compile(r"^j[0-9a-z]{26}$")


class QuantizeOptions(Model):
    exclude: Annotated[tuple[Pattern, ...], Field(max_length=256)] = ()
    """Shell-style patterns over checkpoint tensor names; a matching tensor is kept."""
    lm_head: bool = False
    scales: Literal["fused", "reference"] = "fused"
    """`reference` gives each tensor its own scale, as ModelOpt does. It is for comparison: engines fuse siblings."""
    dtype: Literal["bfloat16", "float16", "keep"] = "bfloat16"
    """What kept floating tensors are cast to."""
    merge: bool = False
    """Take a drafter that is quantized in part, in this very format: the rest is quantized, what is there is kept."""
    nvfp4_scale_search: bool = False
    """Choose each NVFP4 block scale by least weight error, not by the block's largest magnitude. Slower to make; served
    the same. Only for `nvfp4` and `w4a16_nvfp4`, with fused scales."""


def scale_search_faults(format: str, quantize: QuantizeOptions) -> tuple[str, ...]:
    """Why there is no scale search for the two together; empty where there is, or none is asked for."""
    if not quantize.nvfp4_scale_search:
        return ()
    names = " and ".join(SCALE_SEARCH_FORMATS)
    faults = () if format in SCALE_SEARCH_FORMATS else (f"is for {names}; {format} has no such block scales",)
    if quantize.scales == "reference":
        return (*faults, "scales: reference gives ModelOpt's bytes, which are those of plain max")
    return faults


def check_scale_search(format: str, quantize: QuantizeOptions) -> None:
    """For models' validators: raises what a service answers with `scale-search-refused`."""
    if faults := scale_search_faults(format, quantize):
        # Braces would be read as a template.
        raise PydanticCustomError("scale_search_refused", "{faults}", {"faults": "; ".join(faults)})


class JobSpec(Model):
    """What `POST /v1/jobs` takes."""

    source: RepoSource | PathSource
    format: Format | Literal["auto", "keep"]
    """`keep` leaves every tensor as it is, but for what `head` and `draft_vocab` rewrite."""
    quantize: QuantizeOptions = QuantizeOptions()
    auto: Auto | None = None
    """By which budget `format: auto` chooses; null with any other format."""
    head: HeadOptions | None = None
    """Only with `format: keep`: rewrite lm_head in integers."""
    draft_vocab: DraftVocabOptions | None = None
    """Only with `format: keep`: a smaller vocabulary for drafting."""
    capture: CaptureOptions | None = None
    """What GPTQ is calibrated with, and a draft vocabulary may be counted over."""
    benchmark: Benchmark | None = None
    """Measure the variant in an engine, beside the drafter it was made from."""
    accept_failed_gate: bool = False
    """Also answer with a variant that failed the gate of its newest benchmark; the verdict stays on the job. A
    benchmark of the job's own is judged by its own gate, whatever is said here."""
    publish: Annotated[None, _not_yet("publish")] = None
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    deadline: Instant | None = None
    """The job expires when it is not done by then."""

    @property
    def fixed_format(self) -> Format:
        """Of a job that names one. ValueError for `auto`, whose format is the resolved spec's, and for `keep`."""
        if self.format in (AUTO, KEEP):
            raise ValueError(f"the job names no format of its own: {self.format}")
        return Format(self.format)

    @model_validator(mode="after")
    def _control_is_unquantized(self) -> Self:
        if self.quantize.merge and self.benchmark is not None:
            message = "the source of a merged variant is quantized too, and no control for it; leave `benchmark` null"
            raise PydanticCustomError("field_not_supported", message)
        if self.quantize.merge and self.format not in set(Format):
            raise PydanticCustomError("field_not_supported", "`quantize.merge` needs a format of its own")
        return self

    @model_validator(mode="after")
    def _scale_search(self) -> Self:
        check_scale_search(self.format, self.quantize)
        return self

    @model_validator(mode="after")
    def _budget_of_auto(self) -> Self:
        if (self.format == AUTO) != (self.auto is not None):
            raise PydanticCustomError("auto_budget", "`format: auto` and a budget in `auto` belong together")
        if self.auto is not None and self.auto.max_al_drop is not None and self.benchmark is None:
            raise PydanticCustomError("auto_budget", "`auto.max_al_drop` needs a benchmark that measures it")
        return self

    @property
    def reads_hidden_states(self) -> bool:
        """Whether an engine runs for `capture`; else it only names a tokenizer."""
        counted = self.draft_vocab is not None and self.draft_vocab.own_outputs
        return self.capture is not None and (self.head is not None or counted)

    @model_validator(mode="after")
    def _rewritten_heads(self) -> Self:
        if (self.format == KEEP) != (self.head is not None or self.draft_vocab is not None):
            raise PydanticCustomError("head_job", "`format: keep` goes with `head` or `draft_vocab`, and they with it")
        if self.capture is None and self.head is not None and self.head.method != "rtn":
            raise PydanticCustomError("head_capture", f"`head.method: {self.head.method}` needs a `capture`")
        if self.capture is None and self.draft_vocab is not None and self.draft_vocab.own_outputs:
            raise PydanticCustomError("head_capture", "`draft_vocab.own_outputs` needs a `capture`")
        if self.capture is not None and self.format != KEEP:
            raise PydanticCustomError("head_job", "`capture` goes with `format: keep`")
        if self.format == KEEP and self.benchmark is not None:
            message = "this build does not benchmark a rewritten head yet; leave `benchmark` null"
            raise PydanticCustomError("field_not_supported", message)
        return self


class ResolvedSource(Model):
    repo: str | None = None
    commit: Commit | None = None
    path: str | None = None
    manifest_sha256: Sha256
    """Digest of the source's manifest: names, sizes and SHA-256 of every file pulled."""


class ResolvedSpec(Model):
    """The spec with defaults filled and names resolved. Its digest addresses the variant."""

    source: ResolvedSource
    format: Format | Literal["keep"]
    quantize: QuantizeOptions
    head: HeadOptions | None = None
    rows_sha256: Sha256 | None = None
    """Of the capture that the head was made and judged with."""
    draft_ids_sha256: Sha256 | None = None
    """Of the draft vocabulary's ids as little-endian int64."""
    family: str
    quantizer: str
    """Build id of the quantizer that wrote the bytes."""
    variant: Sha256
    """Digest of (source manifest, format, quantize options, quantizer); with `keep` of (source manifest, head options,
    rows, draft ids, quantizer)."""


class Progress(Model):
    done: int = Field(ge=0)
    total: int = Field(ge=0)
    unit: Literal["bytes", "tensors", "files", "checks", "prompts", "variants"]


class DeviceWait(Model):
    """Others have the devices that a stage needs."""

    place: int = Field(ge=1)
    """In line; 1 is the next."""
    devices: int = Field(ge=1)
    """How many it needs, all at once."""


class StageRecord(Model):
    name: Stage
    state: StageState = StageState.PENDING
    progress: Progress | None = None
    waiting: DeviceWait | None = None
    """While the stage is pending because others have its devices."""
    devices: tuple[str, ...] = ()
    """Of the worker's machine, that the stage has or had to itself: `cpu`, `gpu0`."""
    started_at: Instant | None = None
    ended_at: Instant | None = None


class Attempt(Model):
    number: int
    worker: str
    started_at: Instant
    ended_at: Instant | None = None
    outcome: Literal["succeeded", "failed", "canceled", "expired", "lost", "interrupted"] | None = None
    stages: tuple[StageRecord, ...] = ()


class AcceptanceSummary(Model):
    """What a benchmark of the variant found. The whole is `GET /v1/jobs/{id}/acceptance`."""

    job: str
    """Whose benchmark it is."""
    verdict: Verdict
    """Of that job's gate."""
    failures: tuple[str, ...] = ()
    al: float
    control_al: float
    change: Interval
    """Relative change of accepted tokens per draft."""
    num_speculative_tokens: int
    emulated: bool
    receipts: tuple[str, ...]
    """Boot ids: the variant's, then those of what it was compared with."""

    @classmethod
    def of(cls, job: str, acceptance: Acceptance) -> Self:
        variant, control = acceptance.variant, acceptance.control
        others = [control, *acceptance.control_repeats, *([acceptance.none] if acceptance.none else [])]
        return cls(
            job=job,
            verdict=acceptance.gate.verdict,
            failures=acceptance.gate.failures,
            al=variant.al or 1.0,
            control_al=control.al or 1.0,
            change=acceptance.change,
            num_speculative_tokens=acceptance.benchmark.num_speculative_tokens,
            emulated=variant.emulated,
            receipts=(variant.receipt, *(arm.receipt for arm in others)),
        )


class Summary(Model):
    """What a finished job says about its variant. Sizes are header bytes of weight tensors."""

    source_bytes: int
    variant_bytes: int
    tensors_quantized: int
    tensors_kept: int
    checks_passed: int
    checks_warned: int
    checks_failed: int
    scale_search: ScaleSearch | None = None
    """With `quantize.nvfp4_scale_search`: the weight error beside that of plain max."""
    acceptance: AcceptanceSummary | None = None
    """The job's own benchmark; without one, the newest that was ever made of the variant."""


class Job(Model):
    id: str
    state: JobState
    reason: Reason | None = None
    problem: Problem | None = None
    spec: JobSpec
    resolved_spec: ResolvedSpec | None = None
    cached: bool = False
    """True when the variant was sealed before and answered from the store."""
    summary: Summary | None = None
    attempts: tuple[Attempt, ...] = ()
    queue_position: int | None = None
    """Its place in line while it is queued, from 1. None in lists, and for items of batches, which have turns."""
    batch: str | None = None
    """The batch whose item it is."""
    created_at: Instant | None = None
    """When it was submitted; None from a service that does not tell."""
    timestamps: dict[JobState, Instant]
    """The last time each state was entered."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def done(self) -> bool:
        return self.state in DONE

    @computed_field  # type: ignore[prop-decorator]
    @property
    def outcome(self) -> Outcome | None:
        return Outcome(self.state.value) if self.state in DONE else None


class JobPage(Model):
    items: tuple[Job, ...]
    next_cursor: str | None = None
