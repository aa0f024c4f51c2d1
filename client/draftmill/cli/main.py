"""The `draftmill` command: its subcommands, and every error as a message and an exit code."""

import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from typing import Annotated, Any

import typer

from draftmill.cli import extensions
from draftmill.cli.exits import HELP, ExitCode, of_error
from draftmill.cli.extensions import MissingExtraError
from draftmill.cli.interrupt import quiet_interrupt
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


# Command, or group of commands, by the module that holds it.
_COMMANDS = {
    "submit": "submit",
    "preflight": "submit",
    "head": "head",
    "download": "files",
    "formats": "files",
}
_GROUPS = {
    "jobs": "List, show, watch, cancel and retry jobs.",
    "batch": "Submit, show, watch, report, cancel and retry batches.",
    "receipts": "List, show, compare and verify receipts of engine boots.",
}


def build(only: str | None = None) -> typer.Typer:
    """All commands, or the named one alone: one command must not pay for the imports of all."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(help=ABOUT)(_about)
    for name, module in _COMMANDS.items():
        if only in (None, name):
            app.command()(getattr(_module(module), name))
    for name, about in _GROUPS.items():
        if only in (None, name):
            app.add_typer(_module(name).app, name=name, help=about)
    for name, command in extensions.commands(only).items():
        app.command(name)(command)
    return app


def _module(name: str) -> Any:
    return import_module(f"draftmill.cli.{name}")


def _named(arguments: Sequence[str]) -> str | None:
    """The command that a command line names, where it begins with one."""
    known = {*_COMMANDS, *_GROUPS, *extensions.names()}
    return arguments[0] if arguments and arguments[0] in known else None


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and gives its exit code. A fault of Draftmill's own shows its traceback."""
    output = Output("--json" in arguments)
    try:
        with quiet_interrupt():
            app = build(_named(arguments))
        code = app(list(arguments) or ["--help"], prog_name="draftmill", standalone_mode=False)
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
