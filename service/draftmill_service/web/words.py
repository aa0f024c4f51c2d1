"""How values read on a page: the filters of the templates."""

import json
from datetime import UTC, datetime
from math import isfinite

from pydantic import JsonValue

from draftmill.benchmarks import Interval
from draftmill.jobs import Attempt, Job, PathSource, RepoSource, StageRecord

_UNITS = ("B", "kB", "MB", "GB", "TB")
NOTHING = "\N{EN DASH}"


def plain(value: object) -> str:
    """Text from outside: control characters and marks that turn the direction of writing are shown, not obeyed."""
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in str(value))


def size(count: int | None) -> str:
    if count is None:
        return NOTHING
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 1000 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{count} B" if unit == "B" else f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"


def seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    if value < 0.0005:
        return "0 s"
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def moment(time: datetime | None) -> str:
    """In UTC, to the second."""
    return NOTHING if time is None else time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def clock(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]


def al(value: float | None) -> str:
    """An acceptance length."""
    return NOTHING if value is None or not isfinite(value) else f"{value:.3f}"


def as_json(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def percent(value: float | None, digits: int = 1) -> str:
    return NOTHING if value is None else f"{value:.{digits}%}"


def change(interval: Interval) -> str:
    return (
        f"{interval.value:+.1%} ({interval.confidence:.0%} interval {interval.low:+.1%} to {interval.high:+.1%})"
    ).replace("-", "\N{MINUS SIGN}")


def ratio(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else NOTHING


def source(value: RepoSource | PathSource) -> str:
    if isinstance(value, PathSource):
        return plain(value.path)
    return value.repo if value.revision == "main" else f"{value.repo}@{value.revision}"


def short(digest: str | None) -> str:
    return NOTHING if digest is None else digest[:12]


def took(record: StageRecord | Attempt) -> float | None:
    if record.started_at is None or record.ended_at is None:
        return None
    return (record.ended_at - record.started_at).total_seconds()


def created(job: Job) -> datetime:
    return job.created_at or min(job.timestamps.values())


def ended(job: Job) -> datetime | None:
    return job.timestamps.get(job.state) if job.done else None


def lasted(job: Job) -> float | None:
    """From submission to the end."""
    end = ended(job)
    return None if end is None else (end - created(job)).total_seconds()


FILTERS = {
    each.__name__: each
    for each in (
        plain,
        size,
        seconds,
        moment,
        clock,
        al,
        as_json,
        percent,
        change,
        ratio,
        source,
        short,
        took,
        created,
        ended,
        lasted,
    )
}
