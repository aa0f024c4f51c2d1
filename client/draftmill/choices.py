"""`format: auto`: a budget in, and what was weighed and chosen out."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from draftmill._model import Model
from draftmill.benchmarks import Interval
from draftmill.formats import Format

AUTO: Literal["auto"] = "auto"
KEEP: Literal["keep"] = "keep"


class Auto(Model):
    """What may be chosen, and by which budget. With `max_size` alone the best acceptance length within it is chosen,
    or without a benchmark the least weight error; with `max_al_drop` the smallest variant that keeps within both."""

    formats: Annotated[tuple[Format, ...], Field(max_length=len(Format))] = ()
    """Only these; empty means every format."""
    max_size: Annotated[float, Field(gt=0, le=1)] | None = None
    """Header bytes of the variant's weights, as a fraction of the source's."""
    max_al_drop: Annotated[float, Field(ge=0, le=1)] | None = None
    """Largest relative fall in accepted tokens per draft, by the interval's lower bound. Needs a benchmark."""
    boots: Annotated[int, Field(ge=2, le=256)] = 12
    """Engine boots at most, beside the control's: up to half of them for one module at a time, the rest for
    candidates, plain nvfp4 first among them."""

    @model_validator(mode="after")
    def _some_budget(self) -> Self:
        if self.max_size is None and self.max_al_drop is None:
            raise PydanticCustomError("auto_budget", "must have `max_size`, `max_al_drop` or both")
        return self


class Sensitivity(Model):
    """What quantizing one fused set, or one module that is not fused, costs in the base format."""

    unit: str
    weights: tuple[str, ...]
    saved_bytes: int
    """What quantizing it saves."""
    weight_error: float
    """||Q(w) - w|| / ||w|| over its weights."""
    change: Interval | None = None
    """Of accepted tokens per draft when it alone is quantized; None where it was not measured."""
    receipt: str | None = None


class Candidate(Model):
    """One variant that could be made."""

    format: Format
    kept: tuple[str, ...] = ()
    """Units of the base format that stay as they are."""
    exclude: tuple[str, ...] = ()
    """Patterns that keep them."""
    scale_search: bool = False
    """Made with `quantize.nvfp4_scale_search`."""
    variant_bytes: int
    weight_error: float
    """||Q(w) - w|| / ||w|| over every weight that some candidate quantizes."""
    al: float | None = None
    al_interval: Interval | None = None
    """Of `al`, by the bootstrap over prompts; None where it was not measured, as all below."""
    change: Interval | None = None
    """Of accepted tokens per draft, against the control."""
    receipt: str | None = None


class Comparison(StrEnum):
    """What the interval of a gain says, and nothing beyond it."""

    BEATS = "beats"
    """It lies above 0, and the chosen variant is no larger."""
    MORE_FOR_MORE = "more-for-more"
    """It lies above 0, and the chosen variant is larger."""
    NOT_SHOWN = "not-shown"
    """It holds 0."""
    WORSE = "worse"
    """It lies below 0."""
    SAME = "same"
    """The chosen variant is the baseline."""


class Baseline(Model):
    """Plain nvfp4, measured as the candidates are, whether or not it keeps within the budget."""

    variant: Candidate
    gain: Interval
    """Acceptance length of the chosen variant less this one's, paired over prompts. The chosen is the best of several
    that were measured on these same prompts, so that the interval is widened to hold for all of them together: its
    confidence is 1 - (1 - c) / n, where c is the gate's and n is `compared` (Bonferroni)."""
    compared: int
    """Measured candidates, other than this one."""
    says: Comparison


class Refused(Model):
    """A format that this drafter cannot have."""

    format: Format
    problem: str
    detail: str


class Choice(Model):
    """`GET /v1/jobs/{id}/choice`."""

    schema_: Literal["draftmill.choice/v1"] = Field(default="draftmill.choice/v1", alias="schema")
    auto: Auto
    source_bytes: int
    base: Format
    """The smallest format, whose units were weighed."""
    control_al: float | None = None
    sensitivities: tuple[Sensitivity, ...]
    """The costliest by byte first."""
    candidates: tuple[Candidate, ...]
    """By size."""
    refused: tuple[Refused, ...] = ()
    chosen: int
    """Place among the candidates."""
    why: str
    baseline: Baseline | None = None
    """None without an engine, and where nvfp4 is refused or not among the formats that may be chosen."""

    @property
    def choice(self) -> Candidate:
        return self.candidates[self.chosen]
