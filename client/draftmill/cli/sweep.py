"""Sweeps: a batch's spec in a file, YAML or JSON, with the short forms that people write."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from draftmill._locations import is_field
from draftmill.batches import BatchSpec
from draftmill.cli.recipe import read_recipe
from draftmill.cli.request import UsageProblemError, is_path, read_deadline
from draftmill.jobs import PathSource, RepoSource
from draftmill.problems import Offender

FILE = "SWEEP"
_STAND_IN = {"repo": "unknown"}


def batch_spec(file: str, over: Mapping[str, Any], now: datetime | None = None) -> BatchSpec:
    """The spec of a file, with what was typed over it. Raises UsageProblemError with everything that is wrong.

    Paths in the file are relative to its folder.
    """
    offenders: list[Offender] = []
    fields = read_recipe(file, offenders, FILE)
    if not offenders:
        folder = Path(file).expanduser().resolve().parent
        _expand(fields, folder, now or datetime.now(UTC), offenders)
        fields |= {name: value for name, value in over.items() if value is not None}
        try:
            spec = BatchSpec.model_validate(fields)
        except ValidationError as error:
            offenders += _offenders(error)
    if offenders:
        raise UsageProblemError("the file does not make a batch", offenders)
    return spec


def _expand(fields: dict[str, Any], folder: Path, now: datetime, offenders: list[Offender]) -> None:
    """Short forms to whole ones; a stand-in for what is found wrong, so that the rest is checked too."""
    if isinstance(sources := fields.get("sources"), list):
        fields["sources"] = [
            _source(value, folder, f"sources[{place}]", offenders) or {"repo": f"unknown-{place}"}
            for place, value in enumerate(sources)
        ]
    if isinstance(formats := fields.get("formats"), list):
        fields["formats"] = [value.lower() if isinstance(value, str) else value for value in formats]
    benchmark = fields.get("benchmark")
    if isinstance(benchmark, dict) and "target" in benchmark:
        target = _source(benchmark["target"], folder, "benchmark.target", offenders) or _STAND_IN
        fields["benchmark"] = {**benchmark, "target": target}
    if isinstance(deadline := fields.get("deadline"), str):
        found: list[Offender] = []
        fields["deadline"] = read_deadline(deadline, now, found)
        offenders += [each.model_copy(update={"where": "deadline"}) for each in found]


def _source(value: Any, folder: Path, where: str, offenders: list[Offender]) -> RepoSource | PathSource | None:
    """`org/drafter`, `org/drafter@revision`, a path, or the mapping that a job takes."""
    try:
        if isinstance(value, str) and is_path(value):
            value = {"path": str((folder / Path(value).expanduser()).resolve())}
        elif isinstance(value, str):
            repo, at, revision = value.partition("@")
            value = {"repo": repo, "revision": revision} if at else {"repo": repo}
        is_folder = isinstance(value, dict) and "path" in value
        return (PathSource if is_folder else RepoSource).model_validate(value)
    except ValidationError as error:
        offenders += _offenders(error, where)
        return None


def _offenders(error: ValidationError, under: str = "") -> list[Offender]:
    found = []
    for fault in error.errors(include_url=False):
        where = under + "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"] if is_field(part)
        )
        value = fault["input"] if isinstance(fault["input"], str | int | float) else None
        found.append(Offender(where=where.removeprefix("."), message=fault["msg"], value=value))
    return found
