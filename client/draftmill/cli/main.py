"""The `draftmill` command: its subcommands, and every error as a message and an exit code."""

import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer

from draftmill.cli import extensions, files, jobs, receipts, submit
from draftmill.cli.exits import HELP, ExitCode, of_error
from draftmill.cli.extensions import MissingExtraError
from draftmill.cli.output import Output
from draftmill.cli.request import UsageProblemError
from draftmill.errors import DraftmillError
from draftmill.problems import Offender

ABOUT = f"""Quantize speculative-decoding drafters, and prove that an engine still accepts their tokens.

\b
A first job:
  draftmill up                                          (in one terminal)
  draftmill submit org/drafter --format fp8_pc_pt --wait   (in another)
  draftmill download JOB -o drafter-fp8

The service is found by DRAFTMILL_URL and DRAFTMILL_API_KEY, or else through what `draftmill up` leaves in the data
directory (DRAFTMILL_DATA_DIR, by default ~/.local/share/draftmill).

{HELP}
"""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"draftmill {metadata.version('draftmill')}")
        raise typer.Exit


def _about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def build() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(help=ABOUT)(_about)
    app.command()(submit.submit)
    app.add_typer(jobs.app, name="jobs", help="List, show, watch, cancel and retry jobs.")
    app.add_typer(receipts.app, name="receipts", help="List, show, compare and verify receipts of engine boots.")
    app.command()(submit.preflight)
    app.command()(files.download)
    app.command()(files.formats)
    for name, command in extensions.commands().items():
        app.command(name)(command)
    return app


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and gives its exit code. A fault of Draftmill's own shows its traceback."""
    output = Output("--json" in arguments)
    try:
        code = build()(list(arguments) or ["--help"], prog_name="draftmill", standalone_mode=False)
    except typer.TyperException as error:
        usage = UsageProblemError(error.format_message(), _parameter(error))
        output.error(usage)
        return ExitCode.USAGE
    except (UsageProblemError, MissingExtraError) as error:
        output.error(error)
        return ExitCode.USAGE
    except DraftmillError as error:
        output.error(error)
        return of_error(error)
    return code if isinstance(code, int) else ExitCode.OK


def _parameter(error: typer.TyperException) -> list[Offender]:
    """The option or argument that the parser stumbled over, where it names one."""
    parameter = getattr(error, "param", None)
    name = getattr(error, "option_name", None) or (parameter.opts[0] if parameter is not None else None)
    return [Offender(where=name, message=error.message or "is missing")] if name else []


def main() -> None:
    try:
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        # Before or after the command itself, which Typer answers for.
        sys.exit(ExitCode.INTERRUPTED)
