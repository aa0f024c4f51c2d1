"""`draftmill up`."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftmill.cli.exits import ExitCode
from draftmill.cli.options import Json
from draftmill.cli.output import Output
from draftmill.connection import data_dir as default_data_dir
from draftmill_service.up.errors import UpError
from draftmill_service.up.ports import usable

if TYPE_CHECKING:
    from draftmill_service.up import embedded


def up(
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where everything is kept.  [default: DRAFTMILL_DATA_DIR or ~/.local/share/draftmill]"
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The API's port on the loopback; 0 takes a free one.")
    ] = 8642,
    allow_root: Annotated[
        list[Path], typer.Option(metavar="DIR", help="A folder that PATH sources may lie under. May be repeated.")
    ] = [],  # noqa: B006 -- typer copies it
    json: Json = False,
) -> None:
    """Run the whole service here: Redis, the API and one worker, until Ctrl-C.

    Redis is the one that DRAFTMILL_REDIS_URL or REDIS_URL names, else one of our own with an append-only file in the
    data directory: a server on PATH, or the binary of the `embedded` extra. A process that dies is started again. The
    next `up` in the same directory finds its jobs again.

    \b
    Examples:
      draftmill up
      draftmill up --port 0 --data-dir ./mill --allow-root ./outputs
    """
    # Every `draftmill` command loads this module; only this one needs Redis' client and the rest.
    from draftmill_service.up import embedded
    from draftmill_service.up.state import only_instance

    output = Output(json)
    folder = (data_dir.expanduser() if data_dir else default_data_dir()).absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with only_instance(folder):
            plan = embedded.Plan(
                data_dir=folder,
                port=usable(port),
                redis_url=_redis_url(),
                allowed_roots=_roots(allow_root),
                environ=os.environ,
            )
            output.note(f"starting in {folder}")
            embedded.run(plan, output.note, lambda redis, dashboard: _announce(output, plan, redis, dashboard))
            output.note("stopped")
    except (UpError, OSError) as error:
        output.error(error if isinstance(error, UpError) else UpError(str(error)))
        raise typer.Exit(ExitCode.USAGE) from error


def _redis_url() -> str | None:
    from draftmill_service.ledger.address import redis_url

    for name in ("DRAFTMILL_REDIS_URL", "REDIS_URL"):
        if url := os.environ.get(name):
            try:
                return redis_url(url)
            except ValueError as error:
                raise UpError(f"{name}: {error}") from None
    return None


def _roots(folders: list[Path]) -> list[Path]:
    roots = [folder.expanduser().resolve() for folder in folders]
    if missing := [str(root) for root in roots if not root.is_dir()]:
        raise UpError(f"--allow-root: no such folder: {', '.join(missing)}")
    return roots


def _announce(output: Output, plan: "embedded.Plan", redis: str, dashboard: str) -> None:
    document = {
        "url": plan.url,
        "dashboard": dashboard,
        "data_dir": str(plan.data_dir),
        "logs": str(plan.logs),
        "redis": redis,
        "allowed_roots": [str(root) for root in plan.allowed_roots],
        "pid": os.getpid(),
    }
    lines = [
        f"open     {dashboard}",
        "         (the dashboard; the link signs one browser in, once, within an hour)",
        f"API      {plan.url}",
        f"OpenAPI  {plan.url}/openapi.json",
        f"Redis    {redis}",
        f"data     {plan.data_dir}",
        f"logs     {plan.logs}",
        "",
        "Ready. In another terminal: draftmill submit org/drafter --format fp8_pc_pt --wait",
        "The worker is importing its libraries, and first jobs wait for that.",
    ]
    if plan.data_dir != default_data_dir():
        lines.append(f"(there, first: export DRAFTMILL_DATA_DIR='{plan.data_dir}')")
    if sys.stdin.isatty():
        lines.append("Ctrl-C stops it.")
    output.result(document, *lines)
