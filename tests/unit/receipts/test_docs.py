"""docs/receipts.md lists the rules and findings as they are."""

import re
from pathlib import Path

from draftmill.archive import FindingKind
from draftmill_worker.receipts.rules import RULES
from draftmill_worker.receipts.ruleset.draft_head import CONDITIONS

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "receipts.md").read_text()
PAGE_OF_HEADS = (DOCS / "heads.md").read_text()


def test_the_page_lists_every_rule_in_its_order() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", PAGE.partition("## Rules")[2], re.M)
    assert dict(rows) == {name: rule.proves for name, rule in RULES.items()}
    assert [name for name, _ in rows] == list(RULES)


def test_the_page_names_every_finding() -> None:
    assert {kind for kind in FindingKind if f"`{kind}`" in PAGE} == set(FindingKind)


def test_the_page_of_heads_names_every_condition_of_a_draft_head() -> None:
    section = (PAGE_OF_HEADS.partition("## A draft head in FP8")[2]).partition("## ")[0]
    rows = [line.partition(":")[0] for line in section.splitlines() if line.startswith("- `")]
    assert sorted(name for row in rows for name in re.findall("`([a-z_]+)`", row)) == sorted(CONDITIONS)
