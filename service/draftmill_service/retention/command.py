"""`draftmill-service gc`, `pin`, `unpin` and `pins`."""

import asyncio
import json
from typing import Annotated, TypeVar

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from draftmill_service.commands import command_settings
from draftmill_service.ledger import Ledger, LedgerUnavailable
from draftmill_service.retention.gc import BusyError, Collector, Report
from draftmill_service.retention.layout import Kind, batches, inventory, jobs
from draftmill_service.retention.pins import Pins
from draftmill_service.retention.policy import Limits
from draftmill_service.settings import ServiceSettings

_SIZE = TypeAdapter(ByteSize)
USAGE, FAULT = 2, 1
BUSY = 75
"""EX_TEMPFAIL: nothing was done, and the next try may go well."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _size(text: str) -> int:
    try:
        return int(_SIZE.validate_python(text))
    except ValidationError:
        raise typer.BadParameter(f"{text!r} is no size: bytes, or as in 500GB or 1.5TiB") from None


Days = Annotated[float | None, typer.Option(min=0, metavar="DAYS", help="Remove what was not used for longer.")]
Size = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Remove the least recently used until the rest fits: 500GB, 1.5TiB.")
]


def make_gc(settings: ServiceSettings, limits: Limits, *, dry_run: bool, as_json: bool) -> None:
    """Run and print. Exits with 75 when another run is at work, 1 when the ledger does not answer."""

    async def run() -> Report:
        ledger = Ledger.connect(settings.redis_url)
        collector = Collector(settings.data_dir, ledger, limits)
        try:
            return await (collector.dry_run() if dry_run else collector.run())
        finally:
            await ledger.close()

    try:
        report = asyncio.run(run())
    except BusyError as error:
        typer.echo(f"draftmill-service: {error}", err=True)
        raise typer.Exit(BUSY) from None
    except LedgerUnavailable:
        typer.echo("draftmill-service: the ledger does not answer, so nobody knows what is in use", err=True)
        raise typer.Exit(FAULT) from None
    typer.echo(report.model_dump_json(indent=2) if as_json else _text(report))


def _text(report: Report) -> str:
    lines = [f"{_human(line.bytes):>9}  {line.name}  ({line.why})" for line in report.removed]
    lines += [f"     kept  {line.name}  ({line.why})" for line in report.kept]
    verb = "would be removed" if report.dry_run else "removed"
    return "\n".join([*lines, f"{len(report.removed)} {verb}, {_human(report.bytes)}"])


def _human(size: int) -> str:
    return ByteSize(size).human_readable(decimal=True)


def gc(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    variants_days: Days = None,
    variants_size: Size = None,
    sources_days: Days = None,
    sources_size: Size = None,
    jobs_days: Annotated[
        float | None,
        typer.Option(min=0, metavar="DAYS", help="Remove the attempts of jobs, and the batches, that ended before."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove what is past its limits, and what dead processes left.

    Limits come from DRAFTMILL_KEEP_VARIANTS_DAYS, _VARIANTS_BYTES, _SOURCES_DAYS, _SOURCES_BYTES and _JOBS_DAYS;
    an option goes before its variable. Without any, only leftovers go: scratch of dead attempts, pulls that
    stopped half-way (DRAFTMILL_KEEP_PARTIALS_HOURS, 24). What is pinned or a running job uses stays. A tombstone
    says what went, when and why; the same request builds a variant again. Safe while jobs run.

    \b
    Examples:
      draftmill-service gc --dry-run --variants-days 90
      draftmill-service gc --variants-size 2TB --sources-size 500GB --jobs-days 180 --json
    """
    settings = command_settings()
    limits = Limits(
        variants_days=_either(variants_days, settings.keep_variants_days),
        variants_bytes=_either(None if variants_size is None else _size(variants_size), settings.keep_variants_bytes),
        sources_days=_either(sources_days, settings.keep_sources_days),
        sources_bytes=_either(None if sources_size is None else _size(sources_size), settings.keep_sources_bytes),
        jobs_days=_either(jobs_days, settings.keep_jobs_days),
        partials_hours=settings.keep_partials_hours,
    )
    make_gc(settings, limits, dry_run=dry_run, as_json=as_json)


N = TypeVar("N", int, float)


def _either(given: N | None, setting: N | None) -> N | None:
    return setting if given is None else given


Name = Annotated[
    str,
    typer.Argument(
        help="variants/DIGEST, sources/REPOSITORY/COMMIT, jobs/JOB or batches/BATCH, as gc says it; or how one begins."
    ),
]


def pin(name: Name, note: Annotated[str, typer.Option(help="Why, for whoever reads `pins`.")] = "") -> None:
    """Keep a variant, a source, a job's folder or a batch, whatever the limits say."""
    settings = command_settings()
    names = [item.name for item in inventory(settings.data_dir) if item.kind in (Kind.VARIANT, Kind.SOURCE)]
    names += [f"{folder.parent.name}/{folder.name}" for tree in (jobs, batches) for folder in tree(settings.data_dir)]
    typer.echo(Pins(settings.data_dir).add(_one(name, names, "is in the data directory"), note).name)


def unpin(name: Name) -> None:
    """Let the limits apply again."""
    pins = Pins(command_settings().data_dir)
    found = _one(name, [pin.name for pin in pins.list()], "is pinned")
    pins.remove(found)
    typer.echo(found)


def pins(as_json: AsJson = False) -> None:
    """Show what is pinned."""
    listed = Pins(command_settings().data_dir).list()
    if as_json:
        typer.echo(json.dumps([pin.model_dump(mode="json") for pin in listed], indent=2))
        return
    for pin in listed:
        typer.echo(f"{pin.pinned_at:%Y-%m-%d}  {pin.name}  {pin.note}".rstrip())


def _one(wanted: str, names: list[str], what: str) -> str:
    found = [name for name in names if name.startswith(wanted) or name.partition("/")[2].startswith(wanted)]
    exact = [name for name in found if name == wanted or name.partition("/")[2] == wanted]
    found = exact or found
    if len(found) != 1:
        several = f"{len(found)} things that begin with {wanted!r}; say more" if found else f"nothing named {wanted!r}"
        typer.echo(f"draftmill-service: {several} {'' if found else what}".rstrip(), err=True)
        raise typer.Exit(USAGE)
    return found[0]
