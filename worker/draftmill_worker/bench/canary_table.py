"""The capability table in a document: `python -m draftmill_worker.bench.canary_table TABLE.json DOCUMENT.md`.

TABLE is what `draftmill canary` keeps. The document's text between the markers is replaced; with `--check` nothing is
written, and the exit code is 1 where it would change. `--add MORE.json` first adds the rows of another run to TABLE: of
formats or families that were measured apart, by the same engine on the same prompts.
"""

import argparse
from pathlib import Path

from draftmill.canary import Table
from draftmill_worker.bench.canary import BF16, lines

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


def merged(table: Table, more: Table) -> Table:
    """`table` with the rows of `more`, which replace those of the same family and format; a family's stay together.

    ValueError unless engine, prompts and lengths are the same, and every control that both measured has one acceptance
    length: only then are the rows those of one run.
    """
    for field in ("engine", "prompts_sha256", "prompts", "max_tokens"):
        if getattr(table, field) != getattr(more, field):
            raise ValueError(f"{field} differs: {getattr(table, field)}, {getattr(more, field)}")
    rows = {(row.family, row.format): row for row in table.rows}
    for row in more.rows:
        known = rows.get((row.family, row.format))
        if row.format == BF16 and known is not None:
            if known.al != row.al:
                raise ValueError(f"the control of {row.family} differs: {known.al}, {row.al}")
            continue
        rows[row.family, row.format] = row
    families = dict.fromkeys(family for family, _ in rows)
    together = tuple(row for family in families for row in rows.values() if row.family == family)
    changed = {"rows": together, "changes": table.changes | more.changes, "problems": table.problems | more.problems}
    return table.model_copy(update={"made_at": max(table.made_at, more.made_at), **changed})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("document", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--add", type=Path, action="append", default=[], metavar="MORE")
    arguments = parser.parse_args()
    document = arguments.document.read_text()
    table = Table.model_validate_json(arguments.table.read_bytes())
    for more in arguments.add:
        table = merged(table, Table.model_validate_json(more.read_bytes()))
    new = replaced(document, table)
    if arguments.check:
        return int(new != document)
    arguments.document.write_text(new)
    if arguments.add:
        arguments.table.write_text(table.model_dump_json(indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
