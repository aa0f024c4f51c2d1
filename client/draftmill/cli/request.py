"""From command line words to a job spec; everything that is wrong is said at once, by option."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from draftmill.jobs import JobSpec, PathSource, RepoSource
from draftmill.problems import Offender, ProblemError

_DURATION = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_OPTIONS = {
    "repo": "REPO",
    "path": "PATH",
    "revision": "--revision",
    "format": "--format",
    "exclude": "--exclude",
    "scales": "--scales",
    "dtype": "--dtype",
    "labels": "--label",
    "deadline": "--deadline",
}

# What the models' patterns ask for, in words.
_PATTERNS = {
    "REPO": "must be `org/name` as the Hub spells it (a path starts with / . or ~)",
    "PATH": "must be a path without control characters",
    "--revision": "must be a branch, tag or commit",
    "--label": "keys are letters, digits, `.`, `_`, `/` and `-`, at most 63",
}


class UsageProblemError(ProblemError):
    """The command line itself is wrong; nothing was sent."""

    def __init__(self, detail: str, offenders: list[Offender]) -> None:
        super().__init__("invalid-request", detail, offenders)


class Request(NamedTuple):
    """What `submit` and `preflight` take, as typed."""

    source: str
    format: str
    revision: str | None = None
    exclude: tuple[str, ...] = ()
    lm_head: bool = False
    scales: str = "fused"
    dtype: str = "bfloat16"
    labels: tuple[str, ...] = ()
    deadline: str | None = None


def is_path(source: str) -> bool:
    """A repository's name has no leading dot, slash or tilde."""
    return source.startswith(("/", ".", "~"))


def _labels(labels: tuple[str, ...], offenders: list[Offender]) -> dict[str, str]:
    found: dict[str, str] = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not equals:
            offenders.append(Offender(where="--label", message="must be KEY=VALUE", value=label))
        elif key in found:
            offenders.append(Offender(where="--label", message="the key is given twice", value=label))
        else:
            found[key] = value
    return found


def _deadline(text: str | None, now: datetime) -> datetime | str | None:
    if text is None or (duration := _DURATION.fullmatch(text)) is None:
        return text
    return now + timedelta(**{_UNITS[duration[2]]: int(duration[1])})


def _offenders(error: ValidationError) -> list[Offender]:
    found = []
    for fault in error.errors(include_url=False):
        names = [str(part) for part in fault["loc"]]
        where = next((_OPTIONS[name] for name in reversed(names) if name in _OPTIONS), ".".join(names))
        message = _PATTERNS.get(where, fault["msg"]) if fault["type"] == "string_pattern_mismatch" else fault["msg"]
        value = fault["input"] if isinstance(fault["input"], str | int | float) else None
        found.append(Offender(where=where, message=message, value=value))
    return found


def _source(request: Request, offenders: list[Offender]) -> RepoSource | PathSource | None:
    try:
        if not is_path(request.source):
            return RepoSource(repo=request.source, revision=request.revision or "main")
        if request.revision is not None:
            offenders.append(Offender(where="--revision", message="a path has no revision", value=request.revision))
        return PathSource(path=str(Path(request.source).expanduser().resolve()))
    except ValidationError as error:
        offenders += _offenders(error)
        return None


def job_spec(request: Request, now: datetime | None = None) -> JobSpec:
    """Raises UsageProblemError with every option that is wrong."""
    offenders: list[Offender] = []
    source = _source(request, offenders)
    fields: dict[str, Any] = {
        # Stands in for a source that was found wrong, so that the rest is checked too.
        "source": source or RepoSource(repo="unknown"),
        "format": request.format.lower(),
        "quantize": {
            "exclude": request.exclude,
            "lm_head": request.lm_head,
            "scales": request.scales,
            "dtype": request.dtype,
        },
        "labels": _labels(request.labels, offenders),
        "deadline": _deadline(request.deadline, now or datetime.now(UTC)),
    }
    try:
        spec = JobSpec.model_validate(fields)
    except ValidationError as error:
        offenders += _offenders(error)
    if offenders:
        raise UsageProblemError("the command line does not make a job", offenders)
    return spec
