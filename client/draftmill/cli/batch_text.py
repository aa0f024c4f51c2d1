"""Batches as lines of text."""

from collections.abc import Sequence

from draftmill.batches import Batch, BatchItem, BatchReport, BatchSummary, ReportRow
from draftmill.cli.output import columns, plain, size
from draftmill.cli.text import moment, source
from draftmill.states import DONE, JobState

MAX_FAILURES = 20
"""Failed items that are named; the others are counted."""


def counts(batch: BatchSummary) -> str:
    """`12 of 24 done: 11 succeeded, 1 failed; 2 running, 10 queued`."""
    done = sum(batch.counts.get(state, 0) for state in DONE)
    ended, going = (
        ", ".join(f"{batch.counts[state]} {state}" for state in states if batch.counts.get(state))
        for states in (_ENDED, _GOING)
    )
    return f"{done} of {batch.total} done" + (f": {ended}" if ended else "") + (f"; {going}" if going else "")


_ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELED, JobState.EXPIRED)
_GOING = (JobState.RUNNING, JobState.CANCELING, JobState.QUEUED)


def state(batch: BatchSummary) -> str:
    return batch.state + (f" ({batch.reason})" if batch.reason else "")


def batch_rows(batches: Sequence[BatchSummary]) -> list[str]:
    head = ("BATCH", "STATE", "MATRIX", "ITEMS", "CREATED", "LABELS")
    rows = [
        (
            batch.id,
            state(batch),
            f"{batch.sources} x {batch.formats} x {batch.options}",
            counts(batch),
            moment(batch.created_at),
            " ".join(f"{key}={value}" for key, value in batch.labels.items()),
        )
        for batch in batches
    ]
    return columns([head, *rows])


def batch_lines(batch: Batch, items: Sequence[BatchItem]) -> list[str]:
    """The batch, its matrix by state, and why items failed."""
    lines = [f"batch      {batch.id}", f"state      {state(batch)}", f"items      {counts(batch)}"]
    if batch.labels:
        lines.append("labels     " + plain(" ".join(f"{key}={value}" for key, value in batch.labels.items())))
    lines.append(f"created    {moment(batch.created_at)}")
    return [*lines, "", *_matrix(batch, items), *_failures(items)]


def _matrix(batch: Batch, items: Sequence[BatchItem]) -> list[str]:
    """A line per source, a column per format and options."""
    across = batch.formats * batch.options
    names = {item.index % across: _column(batch, item) for item in items[:across]}
    head = ("SOURCE", *(names[place] for place in sorted(names)))
    rows = [
        (source(row[0].source), *(str(item.state or "removed") for item in row))
        for row in (items[start : start + across] for start in range(0, len(items), across))
    ]
    return columns([head, *rows])


def _column(batch: Batch, item: BatchItem) -> str:
    return item.format.upper() + (f" {item.options}" if batch.options > 1 else "")


def _failures(items: Sequence[BatchItem]) -> list[str]:
    failed = [item for item in items if item.state is JobState.FAILED]
    if not failed:
        return []
    lines = [
        f"failed     {source(item.source)} {item.format} {item.job}: {plain(item.problem or item.reason or '')}"
        f" {plain(item.detail or '')}".rstrip()
        for item in failed[:MAX_FAILURES]
    ]
    more = len(failed) - MAX_FAILURES
    return ["", *lines, *([f"           and {more} more"] if more > 0 else [])]


def item_rows(items: Sequence[BatchItem]) -> list[str]:
    head = ("ITEM", "SOURCE", "FORMAT", "OPTIONS", "JOB", "STATE", "NOTE")
    rows = [
        (
            item.index,
            source(item.source),
            item.format,
            item.options,
            item.job or "-",
            item.state or "removed",
            item.problem or item.reason or ("from the store" if item.cached else ""),
        )
        for item in items
    ]
    return columns([head, *rows], right=frozenset({0}))


def report_lines(report: BatchReport) -> list[str]:
    head = (
        "SOURCE",
        "FORMAT",
        "OPTIONS",
        "STATE",
        "BEFORE",
        "AFTER",
        "RATIO",
        "CONTROL",
        "AL",
        "FROM",
        "TO",
        "GATE",
        "FRONT",
    )
    lines = columns([head, *map(_report_row, report.rows)], right=frozenset(range(4, 11)))
    return [*lines, f"{state(report.batch)}: {counts(report.batch)}"]


def _report_row(row: ReportRow) -> tuple[str, ...]:
    def number(value: float | None, form: str = ".3f") -> str:
        return "-" if value is None else format(value, form)

    sizes = ("-" if value is None else size(value) for value in (row.source_bytes, row.variant_bytes))
    return (
        source(row.source),
        row.format,
        row.options,
        str(row.state or "removed"),
        *sizes,
        number(row.ratio, ".1%"),
        *(number(value) for value in (row.control_al, row.al, row.al_low, row.al_high)),
        row.verdict or "-",
        "*" if row.pareto else "",
    )
