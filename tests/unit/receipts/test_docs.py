"""docs/receipts.md lists the rules and findings as they are."""

import re
from pathlib import Path

from draftmill.archive import FindingKind
from draftmill_worker.receipts.rules import RULES

PAGE = (Path(__file__).parents[3] / "docs" / "receipts.md").read_text()


def test_the_page_lists_every_rule_in_its_order() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", PAGE.partition("## Rules")[2], re.M)
    assert dict(rows) == {name: rule.proves for name, rule in RULES.items()}
    assert [name for name, _ in rows] == list(RULES)


def test_the_page_names_every_finding() -> None:
    assert {kind for kind in FindingKind if f"`{kind}`" in PAGE} == set(FindingKind)
