"""A batch's report as CSV (RFC 4180)."""

import csv
import io

from draftmill.batches import BatchReport, ReportRow
from draftmill.sources import PathSource

_PLAIN = (
    *("format", "options", "job", "state", "reason", "problem", "cached", "family", "commit", "resolved_format"),
    *(
        "source_bytes",
        "variant_bytes",
        "ratio",
        "control_al",
        "al",
        "al_low",
        "al_high",
        "verdict",
        "emulated",
        "pareto",
    ),
)
COLUMNS = ("index", "source", "revision", *_PLAIN)


def _cell(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _cells(row: ReportRow) -> list[object]:
    source = (row.source.path, None) if isinstance(row.source, PathSource) else (row.source.repo, row.source.revision)
    return [row.index, *source, *(_cell(getattr(row, name)) for name in _PLAIN)]


def report_csv(report: BatchReport) -> str:
    """One line per item under a line of COLUMNS. What has not been found out is empty; floats are in full."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows(map(_cells, report.rows))
    return text.getvalue()
