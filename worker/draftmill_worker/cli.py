"""`draftmill-worker`: runs a worker."""

import os

import typer

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
    settings = WorkerSettings()
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    Launcher(settings, os.environ).run()


def main() -> None:
    app()


if __name__ == "__main__":
    main()
