"""`draftmill-service`: run the API, manage its keys, print its OpenAPI document."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from draftmill_service.commands import command_settings
from draftmill_service.keyring import Keyring, Scope
from draftmill_service.retention import command as retention

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
keys = typer.Typer(no_args_is_help=True, help="API keys. A running service follows at once.")
app.add_typer(keys, name="keys")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    app()


@app.command()
def run(
    host: Annotated[str | None, typer.Option(help="Address to listen on; DRAFTMILL_HOST.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; DRAFTMILL_PORT.")] = None,
) -> None:
    """Serve the API and run the reaper, until SIGTERM or Ctrl-C."""
    from draftmill_service.server import serve

    settings = command_settings()
    given = {"host": host, "port": port}
    serve(settings.model_copy(update={name: value for name, value in given.items() if value is not None}))


@app.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    from draftmill_service.api.app import create_app

    typer.echo(json.dumps(create_app(command_settings()).openapi(), indent=2, sort_keys=True, ensure_ascii=False))


@app.command()
def rebuild(as_json: AsJson = False) -> None:
    """Fill an empty ledger from the data directory: done jobs with their events, heads of the receipts' chains.

    Run it while no service and no worker runs. Jobs that were queued or running are not restored; those that had begun
    are listed, to be submitted anew. Exit code 1: something on the disk is damaged, and listed.
    """
    from draftmill_service.ledger import LedgerUnavailable
    from draftmill_service.rebuild import rebuilt

    try:
        done = rebuilt(command_settings())
    except LedgerUnavailable as error:
        typer.echo(f"draftmill-service: the ledger is away ({error}); the same command goes on from here", err=True)
        raise typer.Exit(3) from None
    if as_json:
        typer.echo(done.model_dump_json(indent=2))
    else:
        for line in done.lines():
            typer.echo(line)
    if done.unreadable or done.findings:
        raise typer.Exit(1)


def _keyring() -> Keyring:
    return Keyring(command_settings().keys_file)


@keys.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose key it is: 1 to 64 printable characters.")],
    scope: Annotated[list[Scope] | None, typer.Option(help="May be repeated; read alone without it.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the token here (mode 0600) instead of printing it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. Its token is printed once, or written to a file, and kept nowhere else."""
    if token_file is not None and token_file.exists():
        raise typer.BadParameter(f"{token_file} is there already", param_hint="--token-file")
    try:
        key, token = _keyring().create(name, set(scope or [Scope.READ]))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from None
    if token_file is None:
        typer.echo(json.dumps({"id": key.id, "token": token}) if as_json else token)
        return
    with open(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123
        file.write(f"{token}\n")
    typer.echo(json.dumps({"id": key.id, "token_file": str(token_file)}) if as_json else key.id)


@keys.command("list")
def list_keys(as_json: AsJson = False) -> None:
    """Show every key, without its secret."""
    listed = _keyring().list()
    if as_json:
        typer.echo(json.dumps([key.model_dump(mode="json", exclude={"sha256"}) for key in listed], indent=2))
        return
    for key in listed:
        state = "revoked" if key.revoked_at else "valid"
        typer.echo(f"{key.id}  {state:7}  {','.join(key.scopes):20}  {key.created_at:%Y-%m-%d}  {key.name}")


@keys.command()
def revoke(key_id: Annotated[str, typer.Argument(help="As `keys list` shows it.")]) -> None:
    """Refuse a key from now on."""
    try:
        _keyring().revoke(key_id)
    except KeyError:
        typer.echo(f"there is no key {key_id}", err=True)
        raise typer.Exit(2) from None


for each in (retention.gc, retention.pin, retention.unpin, retention.pins):
    app.command()(each)


if __name__ == "__main__":
    main()
