"""docs/checks.md lists the registry as it is."""

from pathlib import Path

from draftmill_worker.verify.checks import REGISTRY

PAGE = Path(__file__).parents[3] / "docs" / "checks.md"


def test_the_table_of_checks_is_current() -> None:
    rows = [f"| `{entry.id}` | {entry.reads} | {entry.proves} |" for entry in REGISTRY.values()]
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert table == rows, "\n".join(rows)
