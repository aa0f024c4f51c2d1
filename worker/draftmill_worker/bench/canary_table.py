"""The capability table in a document: `python -m draftmill_worker.bench.canary_table TABLE.json DOCUMENT.md`.

TABLE is what `draftmill canary` keeps. The document's text between the markers is replaced; with `--check` nothing is
written, and the exit code is 1 where it would change.
"""

import argparse
from pathlib import Path

from draftmill.canary import Table
from draftmill_worker.bench.canary import lines

BEGIN, END = "<!-- canary: begin -->", "<!-- canary: end -->"


def replaced(document: str, table: Table) -> str:
    """ValueError for a document without both markers."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks {BEGIN} or {END}")
    told = (
        f"Measured on {table.made_at:%Y-%m-%d} with {table.engine}: {table.prompts} prompts of draftmill-1,"
        f" at most {table.max_tokens} tokens each, greedy."
    )
    return "\n".join([before + begin, told, "", *lines(table.rows), end]) + after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("document", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    document = arguments.document.read_text()
    new = replaced(document, Table.model_validate_json(arguments.table.read_bytes()))
    if arguments.check:
        return int(new != document)
    arguments.document.write_text(new)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
