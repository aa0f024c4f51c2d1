"""Batches: a matrix of jobs that is submitted, counted, stopped and reported as one."""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import chain
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    computed_field,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from draftmill._model import Model
from draftmill.benchmarks import Benchmark, Verdict
from draftmill.choices import Auto
from draftmill.formats import Format
from draftmill.heads import CaptureOptions, DraftVocabOptions, HeadOptions
from draftmill.jobs import JobSpec, LabelKey, LabelValue, QuantizeOptions, Summary
from draftmill.sources import Commit, Instant, PathSource, RepoSource
from draftmill.states import DONE, JobState, Outcome, Reason

BATCH_ID = re.compile(r"^s[0-9a-z]{26}$")
MAX_SOURCES = 1000
MAX_ITEMS = 4096
MAX_RUNNING = 64

T = TypeVar("T")
CHECKED = {"matrix": "checked"}
"""Validation context for a spec that was found well before: every item's spec is not made once more."""

ItemFormat = Format | Literal["auto", "keep"]
"""What a job's format may be."""
OptionsName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class BatchOptions(Model):
    """One place on the matrix's third axis: what a job's spec says beside its source and format."""

    name: OptionsName | None = None
    """What the report calls it; its position in the list without one."""
    quantize: QuantizeOptions = QuantizeOptions()
    auto: Auto | None = None
    """Goes with the format `auto`, and only with it."""
    head: HeadOptions | None = None
    """This and the next two go with the format `keep`, as in a job."""
    draft_vocab: DraftVocabOptions | None = None
    capture: CaptureOptions | None = None


def _fault(location: tuple[int | str, ...], kind: str, message: str, value: Any) -> InitErrorDetails:
    # Braces would be read as a template.
    error = PydanticCustomError(kind, "{message}", {"message": message})
    return InitErrorDetails(type=error, loc=location, input=value)


def _repeated(values: Iterable[Any], *more: str) -> Iterator[InitErrorDetails]:
    first: dict[str, int] = {}
    for place, value in enumerate(values):
        text = value.model_dump_json() if isinstance(value, Model) else str(value)
        before = first.setdefault(text, place)
        if before != place:
            yield _fault((place, *more), "repeated", f"is the same as number {before}", text)


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    """Not empty, and each value once. Pydantic's own minimum would count what cannot be read as absent."""
    return _checked(values, _repeated(values))


def _distinct_options(values: "tuple[BatchOptions, ...]") -> "tuple[BatchOptions, ...]":
    said = _repeated(each.model_copy(update={"name": None}) for each in values)
    names = _repeated((each.name or place for place, each in enumerate(values)), "name")
    return _checked(values, chain(said, names))


def _checked(values: tuple[T, ...], faults: Iterable[InitErrorDetails]) -> tuple[T, ...]:
    if not values:
        raise PydanticCustomError("too_short", "must have at least one")
    if found := list(faults):
        raise ValidationError.from_exception_data("axis", found)
    return values


def _axis(most: int) -> Any:
    return Field(max_length=most, json_schema_extra={"minItems": 1})


class Position(Model):
    """Indexes into the three axes."""

    source: int
    format: int
    options: int


class BatchSpec(Model):
    """What `POST /v1/batches` takes: every source in every format with every set of options, one job each."""

    sources: Annotated[tuple[RepoSource | PathSource, ...], _axis(MAX_SOURCES), AfterValidator(_distinct)]
    formats: Annotated[tuple[ItemFormat, ...], _axis(64), AfterValidator(_distinct)]
    options: Annotated[tuple[BatchOptions, ...], _axis(64), AfterValidator(_distinct_options)] = (BatchOptions(),)
    benchmark: Benchmark | None = None
    """Of every item. Arms that items share, such as the control of a drafter, are measured once."""
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Of the batch and of every job in it."""
    deadline: Instant | None = None
    """Items that are not done by then expire."""
    accept_failed_gate: bool = False
    """As of a job: also answer with variants that failed the gate of their newest benchmark."""
    max_failures: Annotated[int, Field(ge=0, le=MAX_ITEMS)] | None = None
    """When more items than this have failed, those that wait are canceled. None: every item is tried."""
    max_running: Annotated[int, Field(ge=1, le=MAX_RUNNING)] | None = None
    """At most this many items are with workers at once. The service has a bound of its own."""

    @model_validator(mode="after")
    def _whole(self, info: ValidationInfo) -> Self:
        if info.context != CHECKED:
            self._check()
        return self

    def _check(self) -> None:
        if self.size > MAX_ITEMS:
            message = f"make {self.size} items; a batch has at most {MAX_ITEMS}"
            faults = [_fault(("sources",), "batch_size", message, len(self.sources))]
        else:
            faults = list(self._unfit())
        if faults:
            raise ValidationError.from_exception_data(type(self).__name__, faults)

    def _unfit(self) -> Iterator[InitErrorDetails]:
        """What makes no job, by its position in the matrix; once for a format and options that do not go together."""
        unfit: set[tuple[int, int]] = set()
        for position in self.positions():
            pair = (position.format, position.options)
            try:
                if pair not in unfit:
                    self.job_spec(position)
            except ValidationError as error:
                unfit.add(pair)
                for each in error.errors(include_url=False):
                    where = ".".join(map(str, each["loc"]))
                    at = ("formats", position.format, "options", position.options)
                    yield _fault(at, "batch_item", f"{where}: {each['msg']}" if where else each["msg"], None)

    @property
    def size(self) -> int:
        """Items of the matrix."""
        return len(self.sources) * len(self.formats) * len(self.options)

    def position(self, index: int) -> Position:
        """Of an item by its number: options vary fastest, then formats, then sources."""
        rest, options = divmod(index, len(self.options))
        source, format = divmod(rest, len(self.formats))
        return Position(source=source, format=format, options=options)

    def positions(self) -> Iterator[Position]:
        """All, in the order of their numbers."""
        return map(self.position, range(self.size))

    def turn(self, index: int) -> int:
        """When an item's turn comes: every source in its first format, then every source in the next. Neighbours have
        different sources, so that none waits for the pull or the control of another."""
        at = self.position(index)
        return (at.options * len(self.formats) + at.format) * len(self.sources) + at.source

    def job_spec(self, position: Position) -> JobSpec:
        """The spec of the item's job. Raises ValidationError where the parts do not go together."""
        options = self.options[position.options]
        return JobSpec(
            source=self.sources[position.source],
            format=self.formats[position.format],
            benchmark=self.benchmark,
            labels=self.labels,
            deadline=self.deadline,
            accept_failed_gate=self.accept_failed_gate,
            **{name: getattr(options, name) for name in type(options).model_fields if name != "name"},
        )


class BatchReason(StrEnum):
    """Why a batch was stopped before all its items were tried."""

    CANCELED_BY_USER = "canceled_by_user"
    FAILURE_BUDGET_SPENT = "failure_budget_spent"


class BatchSummary(Model):
    """A batch without its matrix."""

    id: str
    state: JobState
    """queued until a worker takes an item; succeeded when every item did, failed when one did not."""
    reason: BatchReason | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    total: int
    """Items of the matrix."""
    made: int
    """Items that have their job; below `total` only for moments after the submission."""
    sources: int
    formats: int
    options: int
    counts: dict[JobState, int]
    """Items by state; those not made yet count as queued."""
    created_at: Instant
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


class Batch(BatchSummary):
    spec: BatchSpec


class BatchPage(Model):
    items: tuple[BatchSummary, ...]
    next_cursor: str | None = None


class BatchItem(Model):
    """One cell of the matrix."""

    index: int
    """Its number: options vary fastest, then formats, then sources."""
    position: Position
    source: RepoSource | PathSource
    format: ItemFormat
    options: str
    """Name of the options, or their position."""
    job: str | None
    """None for moments after the submission."""
    state: JobState | None
    """None when retention has removed the job."""
    reason: Reason | None = None
    problem: str | None = None
    """Slug of the job's problem."""
    detail: str | None = None
    cached: bool = False
    """The variant was sealed before and answered from the store."""


class BatchItemPage(Model):
    items: tuple[BatchItem, ...]
    next_cursor: str | None = None


class ReportRow(BatchItem):
    """One item as a line of the report. What has not been found out is None."""

    family: str | None = None
    commit: Commit | None = None
    resolved_format: Format | Literal["keep"] | None = None
    """Of the variant: of an item with `auto` what was chosen."""
    source_bytes: int | None = None
    variant_bytes: int | None = None
    ratio: float | None = None
    """variant_bytes by source_bytes."""
    control_al: float | None = None
    al: float | None = None
    """Acceptance length of the variant."""
    al_low: float | None = None
    al_high: float | None = None
    """The gate's interval of the change, applied to the control's accepted tokens per draft."""
    verdict: Verdict | None = None
    """Of the gate."""
    emulated: bool | None = None
    pareto: bool | None = None
    """On the front of size against AL: no item that passed the gate is as small with a larger AL, or smaller with as
    large a one. None for an item without a measured AL."""


class BatchReport(Model):
    batch: BatchSummary
    rows: tuple[ReportRow, ...]
    """Every item, by its number."""


def report_row(item: BatchItem, resolved: Mapping[str, Any], summary: Summary | None) -> ReportRow:
    """An item with what its job found; the front is marked by `mark_front`, which sees all rows.

    `resolved` is the resolved spec's JSON, empty where there is none yet.
    """
    found: dict[str, Any] = {"family": resolved.get("family"), "commit": resolved.get("source", {}).get("commit")}
    found["resolved_format"] = resolved.get("format")
    if summary is not None:
        found |= {"source_bytes": summary.source_bytes, "variant_bytes": summary.variant_bytes}
        found["ratio"] = summary.variant_bytes / summary.source_bytes if summary.source_bytes else None
    if summary is not None and (acceptance := summary.acceptance) is not None:
        accepted = acceptance.control_al - 1.0
        found |= {
            "control_al": acceptance.control_al,
            "al": acceptance.al,
            "al_low": 1.0 + accepted * (1.0 + acceptance.change.low),
            "al_high": 1.0 + accepted * (1.0 + acceptance.change.high),
            "verdict": acceptance.verdict,
            "emulated": acceptance.emulated,
        }
    return ReportRow(**dict(item), **found)


def mark_front(rows: tuple[ReportRow, ...]) -> tuple[ReportRow, ...]:
    """The rows with `pareto` set."""
    front: set[int] = set()
    last: tuple[int, float] | None = None
    points = [
        (row.variant_bytes, row.al, row.index)
        for row in rows
        if row.variant_bytes is not None and row.al is not None and row.verdict is Verdict.PASSED
    ]
    # Smallest first, and the best of equal size first: what does not beat all before it is behind one of them.
    for size, al, index in sorted(points, key=lambda point: (point[0], -point[1])):
        if last is None or al > last[1] or (size, al) == last:
            front.add(index)
            last = size, al
    return tuple(row if row.al is None else row.model_copy(update={"pareto": row.index in front}) for row in rows)
