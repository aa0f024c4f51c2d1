"""`draftmill download` and `draftmill formats`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from draftmill._download import Progress
from draftmill.cli import text
from draftmill.cli.acceptance_text import failed_gate_lines
from draftmill.cli.exits import ExitCode
from draftmill.cli.options import JobId, Json
from draftmill.cli.output import Output, plain, size
from draftmill.client import Client
from draftmill.formats import FORMATS


def download(
    job: JobId,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder the files go to.")],
    parallel: Annotated[int, typer.Option(min=1, max=16, help="Files at once.")] = 4,
    json: Json = False,
) -> None:
    """Download a job's variant, checking every file by its SHA-256.

    Files that are there and right are not sent again; an interrupted download goes on where it stopped.

    \b
    Example:
      draftmill download JOB -o drafter-fp8
    """
    output = Output(json)
    try:
        with Client() as client, _progress(output) as progress:
            done = client.download(job, out, progress=progress, parallel=parallel)
    except KeyboardInterrupt:
        output.note("\nStopped; the same command goes on from here.")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    files = done.artifacts.files
    total = sum(file.size for file in files)
    document = {
        "folder": str(done.folder),
        "variant": done.artifacts.variant,
        "files": list(files),
        "received_bytes": done.received_bytes,
        "acceptance": done.artifacts.acceptance,
    }
    output.result(
        document,
        f"{len(files)} files, {size(total)}, every SHA-256 right ({size(done.received_bytes)} received)",
        f"variant {done.artifacts.variant}",
        f"in {done.folder}",
    )
    for line in failed_gate_lines(done.artifacts.acceptance):
        output.note(line)


@contextmanager
def _progress(output: Output) -> Iterator[Progress | None]:
    if output.as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def show(path: str, done: int, total: int) -> None:
            if path not in tasks:
                tasks[path] = bar.add_task(plain(path), total=total)
            bar.update(tasks[path], completed=done)

        yield show


def formats(json: Json = False) -> None:
    """List the formats: what is stored, and which hardware runs it natively."""
    Output(json).result(list(FORMATS.values()), *text.format_lines())
