"""Every check over one variant."""

import time
from collections.abc import Callable, Iterator

from draftmill.problems import ProblemError
from draftmill.reports import Check, CheckStatus, VerifyReport
from draftmill_worker.heads.verify.checks import CHECKS
from draftmill_worker.heads.verify.view import View
from draftmill_worker.verify.registry import Result

__all__ = ["CHECKS", "View", "lines", "verify_head"]


def verify_head(view: View, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Every check over one variant. A file that cannot be read is a finding."""
    found: list[Check] = []
    for entry in CHECKS.values():
        started = time.perf_counter()
        try:
            result = entry.run(view)
        except ProblemError as error:
            result = Result(evidence={"problem": error.problem.slug}, offenders=list(error.problem.offenders))
            if not result.offenders:
                result.blame(error.problem.slug, error.problem.detail)
        found.append(
            Check(
                id=entry.id,
                status=result.verdict,
                proves=entry.proves,
                evidence=result.evidence,
                offenders=tuple(result.offenders),
                seconds=round(time.perf_counter() - started, 6),
            )
        )
        if progress is not None:
            progress(len(found), len(CHECKS))
    return VerifyReport(passed=all(one.status is not CheckStatus.FAIL for one in found), checks=tuple(found))


def lines(report: VerifyReport) -> Iterator[str]:
    """`PASS head-bits`, and under a failed check each offender."""
    for one in report.checks:
        yield f"{one.status.value.upper()} {one.id}: {one.proves}"
        for offender in one.offenders:
            yield f"     {offender.where}: {offender.message}"
