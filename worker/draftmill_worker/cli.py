"""`draftmill-worker`: runs a worker."""

import os

import psutil
import typer

from draftmill._environment import read_settings, secret
from draftmill.errors import SettingsError
from draftmill_service.ledger.keys import JOBS_QUEUE, PREFLIGHT_QUEUE
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


@app.command()
def health() -> None:
    """End with code 0 when a worker runs here with all its processes, else 1. For a container's health check."""
    if not any(map(_whole, psutil.process_iter())):
        typer.echo("draftmill-worker: no worker runs here with its template and both of its pools", err=True)
        raise typer.Exit(1)


def _whole(launcher: psutil.Process) -> bool:
    try:
        below = [" ".join(child.cmdline()) for child in launcher.children()]
    except psutil.Error:
        return False
    needed = ("draftmill_worker.template", JOBS_QUEUE, PREFLIGHT_QUEUE)
    return all(any(part in line for line in below) for part in needed)


def _settings() -> WorkerSettings:
    try:
        secret("HF_TOKEN")
        return read_settings(WorkerSettings)
    except SettingsError as error:
        typer.echo(f"draftmill-worker: {error}", err=True)
        raise typer.Exit(2) from None


def main() -> None:
    app()


if __name__ == "__main__":
    main()
