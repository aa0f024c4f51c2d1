"""docs/heads.md lists the checks as they are, and the shipped recipe is a job."""

from pathlib import Path

import yaml

from draftmill.jobs import JobSpec
from draftmill_worker.heads.verify.checks import CHECKS

ROOT = Path(__file__).parents[3]


def test_the_table_of_checks_is_current() -> None:
    rows = [f"| `{entry.id}` | {entry.proves} |" for entry in CHECKS.values()]
    table = [line for line in (ROOT / "docs" / "heads.md").read_text().splitlines() if line.startswith("| `")]
    assert table == rows, "\n".join(rows)


def test_the_recipe_is_a_job() -> None:
    spec = JobSpec.model_validate(yaml.safe_load((ROOT / "recipes" / "head-gptq.yaml").read_text()))
    assert spec.head is not None
    assert spec.draft_vocab is not None
    assert spec.capture is not None
