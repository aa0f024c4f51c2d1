"""Each check fails for what it is there for, and no other check fails with it."""

from collections import Counter
from pathlib import Path

import pytest

from draftmill.reports import CheckStatus
from draftmill_worker.verify.checks import REGISTRY
from tests.unit.verify.conftest import Good
from tests.unit.verify.mutations import MUTATIONS, Mutation
from tests.unit.verify.variants import explained, with_status


def test_every_check_has_a_mutation_and_every_mutation_a_check() -> None:
    assert {mutation.check for mutation in MUTATIONS} == set(REGISTRY)
    assert max(Counter(mutation.name for mutation in MUTATIONS).values()) == 1


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_exactly_one_check_fails(good: Good, cache: Path, tmp_path: Path, mutation: Mutation) -> None:
    case = good(mutation.base).copy(tmp_path / "case")
    options = mutation.spoil(case) or {}
    report = case.verify(cache, **options)
    assert not report.passed
    assert with_status(report, CheckStatus.FAIL) == [mutation.check], explained(report)
    failed = next(check for check in report.checks if check.id == mutation.check)
    assert failed.offenders
    assert all(offender.where and offender.message for offender in failed.offenders)
