"""`draftmill receipts ...`: what every boot of an engine recorded, and proof that it is still as recorded."""

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from draftmill.archive import verify as verify_archive
from draftmill.archive.layout import RECEIPTS
from draftmill.benchmarks import ArmName
from draftmill.cli import receipts_text as text
from draftmill.cli.exits import ExitCode
from draftmill.cli.options import Json
from draftmill.cli.output import Output
from draftmill.cli.request import UsageProblemError
from draftmill.client import Client
from draftmill.connection import Connection, data_dir, find_connection
from draftmill.errors import NoServiceError
from draftmill.problems import Offender
from draftmill.receipts import ChainHead

app = typer.Typer(rich_markup_mode=None)

Boot = Annotated[str, typer.Argument(metavar="BOOT", help="The boot's id.")]


@app.command("list")
def list_receipts(
    *,
    job: Annotated[str | None, typer.Option(metavar="JOB", help="Only boots of this job.")] = None,
    arm: Annotated[ArmName | None, typer.Option(help="Only boots of this arm.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, newest first.")] = 50,
    json: Json = False,
) -> None:
    """List boots of engines, newest first."""
    with Client() as client:
        boots = list(islice(client.receipts(job=job, arm=arm, page_size=min(limit, 200)), limit))
    Output(json).result({"items": boots}, *text.rows(boots))


@app.command()
def show(boot: Boot, json: Json = False) -> None:
    """Show one boot's receipt."""
    with Client() as client:
        receipt = client.receipt(boot)
    Output(json).result(receipt, *text.lines(receipt))


@app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A boot's id.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another boot's id.")],
    everything: Annotated[
        bool, typer.Option("--all", help="Also what differs between any two runs: times, ids, rates, cache sizes.")
    ] = False,
    json: Json = False,
) -> None:
    """Show what differs between two boots' receipts. Two runs of the same job differ in nothing."""
    with Client() as client:
        found = client.diff_receipts(a, b, all=everything)
    Output(json).result(found, *text.changes(found))


@app.command()
def verify(
    *,
    folder: Annotated[
        Path | None, typer.Option("--data-dir", metavar="FOLDER", help="The service's data directory.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not ask the service; a chain that lost its end cannot be seen then.")
    ] = False,
    json: Json = False,
) -> None:
    """Prove that the archive is as it was written: every chain walked, every file hashed, compared with the ledger.

    Reads the archive's files themselves. The exit code is 0 when nothing was changed, taken out or added, and 3
    otherwise. A boot that died is incomplete, which is no tampering.
    """
    data = data_dir() if folder is None else folder.absolute()
    root = data / RECEIPTS
    if not data.is_dir():
        missing = Offender(where="--data-dir", message="there is no such folder", value=str(data))
        raise UsageProblemError("there is no archive to verify", [missing])
    output = Output(json)
    report = verify_archive(root, None if offline else _heads(data, output))
    output.result(report, *text.report_lines(report))
    raise typer.Exit(ExitCode.OK if report.passed else ExitCode.PROBLEM)


def _heads(data: Path, output: Output) -> Iterable[ChainHead] | None:
    """From the service that the data directory belongs to, or that the environment names; None without a service."""
    try:
        connection = _connection(data)
    except NoServiceError as error:
        output.note(f"no service is known, so that a chain that lost its end cannot be seen: {error}")
        return None
    with Client(connection.url, connection.api_key) as client:
        return client.receipt_chains().items


def _connection(data: Path) -> Connection:
    return find_connection(environ={**os.environ, "DRAFTMILL_DATA_DIR": str(data)})
