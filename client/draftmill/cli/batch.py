"""`draftmill batch ...`: many drafters in many formats as one."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated

import typer

from draftmill.batch_table import report_csv
from draftmill.batches import MAX_ITEMS, MAX_RUNNING, Batch, BatchSummary
from draftmill.cli import batch_text as text
from draftmill.cli.exits import ExitCode, of_outcome
from draftmill.cli.options import Json
from draftmill.cli.output import Output, plain
from draftmill.cli.sweep import FILE, batch_spec
from draftmill.client import Client
from draftmill.formats import Format
from draftmill.states import DONE, JobState

app = typer.Typer(rich_markup_mode=None)

BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="The batch's id.")]
Show = Callable[[Batch], None]


def _document(batch: BatchSummary) -> dict[str, object]:
    """Without the matrix, which a list or a watcher knows or asks for."""
    return batch.model_dump(mode="json", exclude={"spec"})


@app.command()
def submit(
    file: Annotated[str, typer.Argument(metavar=FILE, help="The batch as YAML or JSON.")],
    *,
    max_failures: Annotated[
        int | None, typer.Option(min=0, max=MAX_ITEMS, help="Cancel what waits when more items than this have failed.")
    ] = None,
    max_running: Annotated[
        int | None, typer.Option(min=1, max=MAX_RUNNING, help="At most this many items with workers at once.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key again gives the same batch, not another.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Watch the batch to its end; the exit code is its outcome.")
    ] = False,
    json: Json = False,
) -> None:
    """Queue every source in every format with every set of options, each as a job.

    \b
    A file needs sources and formats:
      sources: [org/drafter-a, org/drafter-b@v2, ./outputs/run-7]
      formats: [fp8_pc_pt, nvfp4]
      options:                      # each makes the matrix once more
        - {}
        - {name: keep-fc, quantize: {exclude: ["*fc*"]}}
      benchmark: {target: org/target, num_speculative_tokens: 7}
      labels: {team: serving}
      max_failures: 10

    \b
    Examples:
      draftmill batch submit sweep.yaml --wait
      draftmill batch submit sweep.yaml --max-failures 0 --json
    """
    output = Output(json)
    spec = batch_spec(file, {"max_failures": max_failures, "max_running": max_running})
    with Client() as client:
        batch = client.submit_batch(spec, idempotency_key=idempotency_key)
        if not wait:
            output.result(_document(batch), f"{batch.id} {batch.state}, {batch.total} items")
            output.note(f"Watch it: draftmill batch watch {batch.id}")
            return
        output.note(f"{batch.id} {batch.state}, {batch.total} items")
        code = _watch(client, batch.id, output, json_lines=False)
    raise typer.Exit(code)


@app.command("list")
def list_batches(
    *,
    state: Annotated[JobState | None, typer.Option(help="Only batches in this state.")] = None,
    label: Annotated[
        list[str], typer.Option(metavar="KEY[=VALUE]", help="Only batches with this label. May be repeated.")
    ] = [],  # noqa: B006 -- typer copies it
    limit: Annotated[int, typer.Option(min=1, help="At most this many, newest first.")] = 50,
    json: Json = False,
) -> None:
    """List batches, newest first."""
    with Client() as client:
        found = client.batches(state=state, labels=tuple(label), page_size=min(limit, 200))
        batches = list(islice(found, limit))
    Output(json).result({"items": [_document(batch) for batch in batches]}, *text.batch_rows(batches))


@app.command()
def show(batch: BatchId, json: Json = False) -> None:
    """Show a batch: its items by state, as a matrix, and why some failed."""
    with Client() as client:
        found = client.get_batch(batch)
        items = [] if json else list(client.batch_items(batch, page_size=1000))
    Output(json).result(found, *text.batch_lines(found, items))


@app.command()
def items(
    batch: BatchId,
    *,
    state: Annotated[JobState | None, typer.Option(help="Only items in this state.")] = None,
    format: Annotated[Format | None, typer.Option(help="Only items in this format.")] = None,
    json: Json = False,
) -> None:
    """List the items of a batch with their jobs."""
    with Client() as client:
        found = list(client.batch_items(batch, state=state, format=format, page_size=1000))
    Output(json).result({"items": found}, *text.item_rows(found))


@app.command()
def watch(batch: BatchId, json: Json = False) -> None:
    """Follow a batch to its end; the exit code is its outcome. With --json one line per change of its counts.

    Ctrl-C stops the watching, not the batch.
    """
    with Client() as client:
        code = _watch(client, batch, Output(json), json_lines=json)
    raise typer.Exit(code)


@app.command()
def report(
    batch: BatchId,
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values, every column in full.")] = False,
    json: Json = False,
) -> None:
    """Report what the items found: sizes, acceptance length with its interval, the gate's verdict.

    A * marks the front of size against acceptance length: no item that passed the gate is as small with a larger one.
    """
    with Client() as client:
        found = client.batch_report(batch)
    if csv and not json:
        sys.stdout.write(report_csv(found))
    else:
        Output(json).result(found, *text.report_lines(found))


@app.command()
def cancel(batch: BatchId, json: Json = False) -> None:
    """Cancel a batch: items that wait at once, running ones within seconds."""
    with Client() as client:
        found = client.cancel_batch(batch)
    Output(json).result(_document(found), f"{found.id} {text.state(found)}, {text.counts(found)}")


@app.command()
def retry(batch: BatchId, json: Json = False) -> None:
    """Queue the items again that failed or were canceled."""
    with Client() as client:
        found = client.retry_batch(batch)
    Output(json).result(_document(found), f"{found.id} {text.state(found)}, {text.counts(found)}")


def _watch(client: Client, batch_id: str, output: Output, *, json_lines: bool) -> ExitCode:
    """Follows the batch to its end and says how it ended; INTERRUPTED when the person stopped watching."""
    found: Batch | None = None
    try:
        with _shown(output, json_lines) as show:
            for found in client.watch_batch(
                batch_id, away=lambda why: output.note(f"The service is away ({plain(why)}); still trying.")
            ):
                show(found)
    except KeyboardInterrupt:
        output.note(f"\nStopped watching; {batch_id} goes on. To cancel it: draftmill batch cancel {batch_id}")
        return ExitCode.INTERRUPTED
    if found is None:
        return ExitCode.OK
    if not json_lines:
        output.result(_document(found), f"{found.id} {text.state(found)}, {text.counts(found)}")
    return of_outcome(found.outcome)


@contextmanager
def _shown(output: Output, json_lines: bool) -> Iterator[Show]:
    if json_lines:
        yield lambda batch: output.result(_document(batch))
    elif sys.stderr.isatty() and not output.as_json:
        with _bar() as show:
            yield show
    else:
        yield lambda batch: output.note(f"{text.state(batch)}, {text.counts(batch)}")


@contextmanager
def _bar() -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*parts, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(batch: Batch) -> None:
            done = sum(batch.counts.get(state, 0) for state in DONE)
            bar.update(task, completed=done, total=batch.total, description=text.counts(batch))

        yield show
