"""A job's time as rows: the wait before each attempt, the attempt, its stages."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from draftmill.jobs import Attempt, Job, Progress, StageRecord
from draftmill.states import StageState
from draftmill_service.web.words import created, ended

WIDTH = 1000.0
"""User units of the whole time."""
_LEAST = 4.0
"""So that what was quick is seen."""


@dataclass(frozen=True)
class Row:
    kind: Literal["wait", "attempt", "stage"]
    name: str
    state: str
    started_at: datetime | None
    ended_at: datetime | None
    x: float = 0.0
    width: float = 0.0
    progress: Progress | None = None
    note: str = ""

    @property
    def seconds(self) -> float | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()

    @property
    def share(self) -> float | None:
        """Of the work that is done, from 0 to 1."""
        if self.progress is None or self.progress.total == 0:
            return None
        return min(1.0, self.progress.done / self.progress.total)


def timeline(job: Job, now: datetime | None = None) -> list[Row]:
    """What has not ended is drawn up to `now`."""
    begin, until = created(job), ended(job) or now or datetime.now(UTC)
    rows: list[Row] = []
    free = begin
    for attempt in job.attempts:
        rows.append(Row("wait", "queued", "done", free, attempt.started_at))
        rows += _attempt_rows(attempt)
        free = attempt.ended_at or until
    if not job.attempts or (not job.done and job.attempts[-1].ended_at is not None):
        rows.append(Row("wait", "queued", "done" if job.done else "running", free, until if job.done else None))
    whole = max((until - begin).total_seconds(), 0.001)
    return [_placed(row, begin, until, whole) for row in rows]


def _attempt_rows(attempt: Attempt) -> list[Row]:
    state = attempt.outcome or "running"
    whole = Row(
        "attempt", f"attempt {attempt.number}", state, attempt.started_at, attempt.ended_at, note=attempt.worker
    )
    stages = [
        Row(
            "stage",
            record.name,
            record.state,
            record.started_at,
            record.ended_at,
            progress=record.progress if record.state is StageState.RUNNING else None,
            note=_devices(record),
        )
        for record in attempt.stages
    ]
    return [whole, *stages]


def _devices(record: StageRecord) -> str:
    if record.waiting is not None:
        wanted = f"{record.waiting.devices} devices" if record.waiting.devices > 1 else "a device"
        return f"waits for {wanted}, place {record.waiting.place} in line"
    return "on " + ", ".join(record.devices) if record.devices else ""


def _placed(row: Row, begin: datetime, until: datetime, whole: float) -> Row:
    if row.started_at is None:
        return row
    start = (row.started_at - begin).total_seconds() / whole * WIDTH
    end = ((row.ended_at or until) - begin).total_seconds() / whole * WIDTH
    start = min(max(start, 0.0), WIDTH - _LEAST)
    width = min(max(end - start, _LEAST), WIDTH - start)
    return replace(row, x=round(start, 1), width=round(width, 1))
