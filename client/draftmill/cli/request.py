"""From command line words to a job spec; everything that is wrong is said at once, by option."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from draftmill._locations import is_field
from draftmill.cli.recipe import read_recipe
from draftmill.jobs import JobSpec, PathSource, QuantizeOptions, RepoSource
from draftmill.problems import Offender, ProblemError

_DURATION = re.compile(r"([0-9]{1,9})([smhd])")
# A year; without one, pydantic would read seconds since 1970.
_TIME = re.compile(r"[0-9]{4}-.+")
TARGET = "--target"
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
    "num_speculative_tokens": "--num-speculative-tokens",
    "max_al_drop": "--max-al-drop",
    "min_al": "--min-al",
    "min_control_al": "--min-control-al",
    "categories": "--category",
    "limit": "--prompt-limit",
    "max_tokens": "--max-tokens",
    "max_size": "--max-size",
    "formats": "--auto-format",
    "boots": "--auto-boots",
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


class BenchmarkWords(NamedTuple):
    """What `submit` takes about the benchmark, as typed. None is what was not said."""

    target: str | None = None
    target_revision: str | None = None
    num_speculative_tokens: int | None = None
    max_al_drop: float | None = None
    min_al: float | None = None
    min_control_al: float | None = None
    prompts: str | None = None
    categories: tuple[str, ...] = ()
    prompt_limit: int | None = None
    max_tokens: int | None = None


class AutoWords(NamedTuple):
    """What `submit` takes about `--format auto`, as typed."""

    max_size: float | None = None
    max_al_drop: float | None = None
    formats: tuple[str, ...] = ()
    boots: int | None = None


class Request(NamedTuple):
    """What `submit` and `preflight` take, as typed."""

    source: str | None
    format: str | None
    revision: str | None = None
    exclude: tuple[str, ...] = ()
    lm_head: bool = False
    scales: str = "fused"
    dtype: str = "bfloat16"
    labels: tuple[str, ...] = ()
    deadline: str | None = None
    benchmark: BenchmarkWords = BenchmarkWords()
    recipe: str | None = None
    accept_failed_gate: bool = False
    auto: AutoWords = AutoWords()
    merge: bool = False
    scale_search: bool = False


def is_path(source: str) -> bool:
    """A repository's name has no leading dot, slash or tilde."""
    return source.startswith(("/", ".", "~"))


def mistaken(*sources: str | None) -> list[str]:
    """Notes on repositories' names that are folders here as well."""
    return [
        f"note: {words} names a repository of the Hub; for the folder of that name here write ./{words}"
        for words in sources
        if words and not is_path(words) and Path(words).is_dir()
    ]


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


def read_deadline(text: str | None, now: datetime, offenders: list[Offender]) -> datetime | str | None:
    """A duration from `now`, or the text of a time for the model to read."""
    if text is None or _TIME.fullmatch(text):
        return text
    if (duration := _DURATION.fullmatch(text)) is None:
        message = "must be a duration such as 30m, 2h or 1d, or a time with zone such as 2030-01-31T12:00:00Z"
    else:
        try:
            return now + timedelta(**{_UNITS[duration[2]]: int(duration[1])})
        except OverflowError:
            message = "is too far away"
    offenders.append(Offender(where="--deadline", message=message, value=text))
    return None


def _offenders(error: ValidationError) -> list[Offender]:
    found: list[Offender] = []
    for fault in error.errors(include_url=False):
        names = [str(part) for part in fault["loc"]]
        where = next((_OPTIONS[name] for name in reversed(names) if name in _OPTIONS), ".".join(names))
        message = _PATTERNS.get(where, fault["msg"]) if fault["type"] == "string_pattern_mismatch" else fault["msg"]
        value = fault["input"] if isinstance(fault["input"], str | int | float) else None
        if found and found[-1].where == where and not all(is_field(part) for part in fault["loc"]):
            # Another kind of value that would do at the same place.
            found[-1] = found[-1].model_copy(update={"message": f"{found[-1].message}; or: {message}"})
        else:
            found.append(Offender(where=where, message=message, value=value))
    return found


def _source(
    words: str, revision: str | None, names: tuple[str, str], offenders: list[Offender]
) -> dict[str, Any] | None:
    """`names` of the argument and of its revision's option, for what is wrong with them."""
    where, revised = names
    try:
        if not is_path(words):
            return RepoSource(repo=words, revision=revision or "main").model_dump()
        if revision is not None:
            offenders.append(Offender(where=revised, message="a path has no revision", value=revision))
        return PathSource(path=str(Path(words).expanduser().resolve())).model_dump()
    except ValidationError as error:
        for offender in _offenders(error):
            name = {"--revision": revised}.get(offender.where, where if where == TARGET else offender.where)
            offenders.append(offender.model_copy(update={"where": name}))
        return None


def _given(words: BenchmarkWords) -> dict[str, Any]:
    """The parts of a benchmark that were said, by the spec's own names."""
    prompts: dict[str, Any] = {"categories": words.categories or None}
    prompts |= {"limit": words.prompt_limit, "max_tokens": words.max_tokens}
    if words.prompts is not None:
        prompts |= (
            {"path": {"path": str(Path(words.prompts).expanduser().resolve())}}
            if is_path(words.prompts)
            else {"builtin": words.prompts}
        )
    gate = {"max_al_drop": words.max_al_drop, "min_al": words.min_al, "min_control_al": words.min_control_al}
    said = {"prompts": _said(prompts), "gate": _said(gate), "num_speculative_tokens": words.num_speculative_tokens}
    return {name: value for name, value in said.items() if value not in (None, {})}


def _said(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _merged(under: Any, over: dict[str, Any]) -> dict[str, Any]:
    """`over` wins, mapping by mapping."""
    merged = dict(under) if isinstance(under, dict) else {}
    for name, value in over.items():
        merged[name] = _merged(merged.get(name), value) if isinstance(value, dict) else value
    return merged


def _benchmark(request: Request, recipe: dict[str, Any], offenders: list[Offender]) -> dict[str, Any] | None:
    words = request.benchmark
    given = _given(words)
    if words.target is not None:
        names = (TARGET, "--target-revision")
        given["target"] = _source(words.target, words.target_revision, names, offenders) or {"repo": "unknown"}
    known: Any = recipe.get("benchmark")
    if not given:
        return known  # type: ignore[no-any-return]
    if "target" not in given and not (isinstance(known, dict) and "target" in known):
        offenders.append(Offender(where=TARGET, message="a benchmark needs a target"))
        given["target"] = {"repo": "unknown"}
    # A target is one thing: parts of two do not mix.
    under = {name: value for name, value in (known or {}).items() if name != "target" or "target" not in given}
    return _merged(under, given)


def _fields(request: Request, recipe: dict[str, Any], now: datetime, offenders: list[Offender]) -> dict[str, Any]:
    """Of the spec: the recipe's, and over them what was typed."""
    fields: dict[str, Any] = dict(recipe)
    if request.source is not None:
        # Stands in for a source that was found wrong, so that the rest is checked too.
        unknown = {"repo": "unknown"}
        fields["source"] = _source(request.source, request.revision, ("REPO|PATH", "--revision"), offenders) or unknown
    if request.format is not None:
        fields["format"] = request.format.lower()
    for name, option in (("source", "REPO|PATH"), ("format", "--format")):
        if name not in fields:
            offenders.append(Offender(where=option, message="is missing"))
            fields[name] = {"source": {"repo": "unknown"}, "format": "fp8"}[name]
    typed = {"exclude": request.exclude, "lm_head": request.lm_head, "scales": request.scales, "dtype": request.dtype}
    typed |= {"merge": request.merge, "nvfp4_scale_search": request.scale_search}
    defaults = QuantizeOptions().model_dump()
    quantize = {name: value for name, value in typed.items() if not recipe or value != defaults[name]}
    fields["quantize"] = _merged(recipe.get("quantize"), quantize)
    fields["labels"] = _merged(recipe.get("labels"), _labels(request.labels, offenders))
    if request.deadline is not None or "deadline" not in recipe:
        fields["deadline"] = read_deadline(request.deadline, now, offenders)
    fields["benchmark"] = _benchmark(request, recipe, offenders)
    auto = request.auto._asdict() | {"formats": tuple(name.lower() for name in request.auto.formats) or None}
    if said := _said(auto):
        fields["auto"] = _merged(recipe.get("auto"), said)
    if request.accept_failed_gate:
        fields["accept_failed_gate"] = True
    return fields


def job_spec(request: Request, now: datetime | None = None) -> JobSpec:
    """Raises UsageProblemError with every option that is wrong."""
    offenders: list[Offender] = []
    recipe = read_recipe(request.recipe, offenders)
    fields = _fields(request, recipe, now or datetime.now(UTC), offenders)
    try:
        spec = JobSpec.model_validate(fields)
    except ValidationError as error:
        offenders += _offenders(error)
    if offenders:
        raise UsageProblemError("the command line does not make a job", offenders)
    return spec
