"""Watching a job from the terminal: a progress bar there, lines elsewhere, JSON lines on request."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from draftmill.cli.exits import ExitCode, of_outcome
from draftmill.cli.output import Output, dump, plain
from draftmill.cli.text import event_line
from draftmill.jobs import Job
from draftmill.reports import Event, EventKind

if TYPE_CHECKING:
    from draftmill.client import Client

Show = Callable[[Event], None]
Say = Callable[[str], None]
"""Takes a line for the person, beside what is shown of events."""


def watch(client: "Client", job: Job | str, output: Output, *, json_lines: bool) -> tuple[Job | None, ExitCode]:
    """Follows the job to its end. None and INTERRUPTED when the person stopped watching, which the job survives."""
    job_id = job.id if isinstance(job, Job) else job
    try:
        with _shown(output, json_lines) as (show, say):

            def away(why: str) -> None:
                say(f"The service is away ({plain(why)}); still trying.")

            for event in client.watch(job_id, away=away):
                show(event)
        ended = client.get(job_id)
    except KeyboardInterrupt:
        output.note(f"\nStopped watching; {job_id} goes on. To cancel it: draftmill jobs cancel {job_id}")
        return None, ExitCode.INTERRUPTED
    return ended, of_outcome(ended.outcome)


@contextmanager
def _shown(output: Output, json_lines: bool) -> Iterator[tuple[Show, Say]]:
    if json_lines:
        yield lambda event: print(dump(event), flush=True), output.note
    elif output.as_json:
        yield _nothing, output.note
    elif sys.stderr.isatty():
        with _bar() as shown:
            yield shown
    else:
        yield _lines(output), output.note


def _lines(output: Output) -> Show:
    """Every event but progress, of which a stage shows the first and each further tenth."""
    shown: dict[str, int] = {}

    def show(event: Event) -> None:
        if event.kind is EventKind.PROGRESS:
            stage, progress = str(event.data.get("stage")), event.data.get("progress") or {}
            tenth = 10 * progress.get("done", 0) // max(1, progress.get("total", 1))
            if shown.get(stage) == tenth:
                return
            shown[stage] = tenth
        output.note(event_line(event))

    return show


def _nothing(event: Event) -> None:
    del event


@contextmanager
def _bar() -> Iterator[tuple[Show, Say]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task("waiting", total=None, count="")

        def show(event: Event) -> None:
            data = event.data
            if event.kind is EventKind.PROGRESS and (progress := data.get("progress")):
                count = f"{progress['done']}/{progress['total']} {progress['unit']}"
                bar.update(task, completed=progress["done"], total=progress["total"], count=count)
            elif event.kind is EventKind.STAGE and data.get("state") == "running":
                bar.reset(task, description=plain(data.get("stage")), total=None, count="")
            if event.kind is not EventKind.PROGRESS:
                bar.console.print(event_line(event), markup=False)

        yield show, partial(bar.console.print, markup=False)
