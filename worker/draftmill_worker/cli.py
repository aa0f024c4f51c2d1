"""`draftmill-worker`: runs a worker."""

import os

import typer

from draftmill._environment import read_settings
from draftmill.errors import SettingsError
from draftmill_worker.launcher import Launcher
from draftmill_worker.log import log_to_stderr
from draftmill_worker.settings import WorkerSettings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _root() -> None:
    """The worker of Draftmill."""


@app.command()
def run() -> None:
    """Take jobs and preflights until SIGTERM; settings come from DRAFTMILL_* variables."""
    log_to_stderr()
    settings = _settings()
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    Launcher(settings, os.environ).run()


@app.command()
def check() -> None:
    """Read the settings and end: with code 2 and a message when they are wrong."""
    _settings()


def _settings() -> WorkerSettings:
    try:
        return read_settings(WorkerSettings)
    except SettingsError as error:
        typer.echo(f"draftmill-worker: {error}", err=True)
        raise typer.Exit(2) from None


def main() -> None:
    app()


if __name__ == "__main__":
    main()
