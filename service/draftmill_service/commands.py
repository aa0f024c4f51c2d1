"""What every command of `draftmill-service` begins with."""

import typer

from draftmill._environment import read_settings
from draftmill.errors import SettingsError
from draftmill_service.settings import ServiceSettings


def command_settings() -> ServiceSettings:
    """For a command: from the environment; a message and exit code 2 when that is wrong."""
    try:
        return read_settings(ServiceSettings)
    except SettingsError as error:
        typer.echo(f"draftmill-service: {error}", err=True)
        raise typer.Exit(2) from None
