"""docs/cases.md names tests, problems and checks that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from draftmill.problems import KINDS
from draftmill_worker.verify.checks import REGISTRY
from tests.unit.verify.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cases.md").read_text()
ROWS = {match[1]: match for match in re.finditer(r"^\| (C\d+) \| (.+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)}
_CODE = re.compile(r"`([^`]+)`")
# Not a slug: a part of a checkpoint, a route.
_OTHER = {"fc", "/readyz"}


@cache
def _functions(file: str) -> frozenset[str]:
    """Functions by name, those of a class as `Class::name`."""
    found: set[str] = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        owner, body = (f"{node.name}::", node.body) if isinstance(node, ast.ClassDef) else ("", [node])
        found |= {owner + each.name for each in body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return frozenset(found)


def test_every_row_is_a_case_of_its_own() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| C")]
    assert len(ROWS) == len(rows)


@pytest.mark.parametrize("case", ROWS)
def test_every_named_test_exists(case: str) -> None:
    tests = _CODE.findall(ROWS[case][4])
    assert tests or "waits for issue" in ROWS[case][3]
    for test in tests:
        file, _, name = test.partition("::")
        assert name in _functions(file), test
        assert file.endswith("mutations.py") or name.rpartition("::")[2].startswith("test_"), test


@pytest.mark.parametrize("case", ROWS)
def test_every_named_problem_and_check_exists(case: str) -> None:
    named = set(_CODE.findall(ROWS[case][3])) - _OTHER
    assert named <= KINDS.keys() | REGISTRY.keys()


@pytest.mark.parametrize("case", ROWS)
def test_every_named_check_is_seen_to_fail(case: str) -> None:
    spoils = {mutation.spoil.__name__: mutation.check for mutation in MUTATIONS}
    tests = [test.partition("::") for test in _CODE.findall(ROWS[case][4])]
    seen = {spoils[name] for file, _, name in tests if file.endswith("mutations.py")}
    assert seen == set(_CODE.findall(ROWS[case][3])) & REGISTRY.keys()
