"""The canary's table: what one engine does with every family in every format."""

from datetime import datetime

from pydantic import Field

from draftmill._model import Model


class Row(Model):
    family: str
    format: str
    loads: bool
    runs: bool
    """It drafted, its receipt breaks no rule, and its output is that of the target alone."""
    al: float | None = None
    al_low: float | None = None
    al_high: float | None = None
    """95% bootstrap interval over prompts."""
    control_al: float | None = None
    emulated: bool | None = None
    engine: str
    receipt: str | None = None


class Table(Model):
    """A canary's result, a file of its own."""

    made_at: datetime
    engine: str
    prompts_sha256: str
    prompts: int
    max_tokens: int
    rows: tuple[Row, ...]
    changes: dict[str, tuple[float, float, float]] = Field(default_factory=dict)
    """Per `family format`: relative change of accepted tokens per draft, and its interval."""
    problems: dict[str, str] = Field(default_factory=dict)
    """Per `family format` that does not run: why."""
