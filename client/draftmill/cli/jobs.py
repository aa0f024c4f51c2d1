"""`draftmill jobs ...`: the jobs a service has."""

from itertools import islice
from typing import Annotated

import typer

from draftmill.cli import text
from draftmill.cli.acceptance_text import acceptance_lines
from draftmill.cli.choice_text import choice_lines
from draftmill.cli.head_text import head_lines
from draftmill.cli.options import JobId, Json
from draftmill.cli.output import Output
from draftmill.cli.watching import watch as watch_job
from draftmill.client import Client
from draftmill.formats import Format
from draftmill.plans import Family
from draftmill.states import JobState

app = typer.Typer(rich_markup_mode=None)


@app.command("list")
def list_jobs(
    *,
    state: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    format: Annotated[Format | None, typer.Option(help="Only jobs with this format.")] = None,
    family: Annotated[Family | None, typer.Option(help="Only drafters of this family.")] = None,
    label: Annotated[
        list[str], typer.Option(metavar="KEY[=VALUE]", help="Only jobs with this label. May be repeated.")
    ] = [],  # noqa: B006 -- typer copies it
    limit: Annotated[int, typer.Option(min=1, help="At most this many, newest first.")] = 50,
    json: Json = False,
) -> None:
    """List jobs, newest first.

    \b
    Examples:
      draftmill jobs list --state failed
      draftmill jobs list --label team=serving --format fp8 --json
    """
    with Client() as client:
        found = client.list(state=state, format=format, family=family, labels=tuple(label), page_size=min(limit, 200))
        jobs = list(islice(found, limit))
    Output(json).result({"items": jobs}, *text.job_rows(jobs))


@app.command()
def show(job: JobId, json: Json = False) -> None:
    """Show everything about one job."""
    with Client() as client:
        found = client.get(job)
    Output(json).result(found, *text.job_lines(found))


@app.command()
def watch(job: JobId, json: Json = False) -> None:
    """Follow a job to its end; the exit code is its outcome. With --json one event a line.

    Ctrl-C stops the watching, not the job.
    """
    output = Output(json)
    with Client() as client:
        client.get(job)
        ended, code = watch_job(client, job, output, json_lines=json)
    if ended is not None and not json:
        output.result(ended, *text.job_lines(ended))
    raise typer.Exit(code)


@app.command()
def cancel(job: JobId, json: Json = False) -> None:
    """Cancel a job: at once when it is queued, within seconds when it runs."""
    with Client() as client:
        found = client.cancel(job)
    Output(json).result(found, f"{found.id} {found.state}")


@app.command()
def retry(job: JobId, json: Json = False) -> None:
    """Queue a failed or canceled job again, under its own id, unless its deadline has passed."""
    with Client() as client:
        found = client.retry(job)
    Output(json).result(found, f"{found.id} {found.state}")


@app.command()
def plan(job: JobId, json: Json = False) -> None:
    """Show which tensors the job quantizes, which it keeps, and why."""
    with Client() as client:
        found = client.plan(job)
    Output(json).result(found, *text.plan_lines(found))


@app.command()
def acceptance(job: JobId, json: Json = False) -> None:
    """Show the benchmark of the job's variant: acceptance length beside its control, and the gate's verdict."""
    with Client() as client:
        found = client.acceptance(job)
    Output(json).result(found, *acceptance_lines(found))


@app.command()
def head(job: JobId, json: Json = False) -> None:
    """Show what a job with --format keep rewrote, and how far a quantized head is from the original."""
    with Client() as client:
        found = client.head(job)
    Output(json).result(found, *head_lines(found))


@app.command()
def choice(job: JobId, json: Json = False) -> None:
    """Show what a job with --format auto weighed, and what it chose."""
    with Client() as client:
        found = client.choice(job)
    Output(json).result(found, *choice_lines(found))


@app.command()
def verify(job: JobId, json: Json = False) -> None:
    """Show the checks of the job's variant."""
    with Client() as client:
        report = client.verify(job)
    Output(json).result(report, *text.verify_lines(report))
