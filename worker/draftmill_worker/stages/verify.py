"""Verify: every check over the variant in scratch. The report is kept whatever it says; a failure ends the job."""

from pathlib import Path
from typing import Any

from draftmill.choices import KEEP
from draftmill.heads import HeadPlan
from draftmill.plans import Plan
from draftmill.problems import Offender, ProblemError
from draftmill.reports import CheckStatus, Manifest, VerifyReport
from draftmill.states import Stage
from draftmill_worker import stage
from draftmill_worker.heads.verify.run import View, lines, verify_head
from draftmill_worker.variants import VariantStore, summarize, summarize_head
from draftmill_worker.verify.run import verify


def _failure(report: VerifyReport) -> ProblemError:
    failed = [check for check in report.checks if check.status is CheckStatus.FAIL]
    offenders = []
    for check in failed:
        offenders.append(Offender(where=check.id, message=f"not proved: {check.proves}"))
        offenders += check.offenders
    return ProblemError("verify-failed", f"failed: {', '.join(check.id for check in failed)}", offenders)


def _run_head(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    pulled, planned = request.previous[Stage.PULL], request.previous[Stage.PLAN]
    plan = HeadPlan.model_validate(request.previous[Stage.HEADS]["plan"])
    view = View(
        Path(pulled["folder"]), request.variant, plan, pulled["identity"], Manifest.model_validate(pulled["manifest"])
    )
    verdict = verify_head(view, lambda done, total: report.progress(done, total, "checks"))
    for line in lines(verdict):
        report.log("info" if line.startswith(("PASS", "SKIP")) else "warning", line)
    VariantStore(request.data_dir, planned["resolved_spec"]["variant"]).write_report(request.job, verdict)
    if not verdict.passed:
        raise _failure(verdict)
    return {"summary": summarize_head(plan, verdict).model_dump(mode="json")}


def run(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    if request.spec.format == KEEP:
        return _run_head(request, report)
    pulled, planned = request.previous[Stage.PULL], request.previous[Stage.PLAN]
    plan = Plan.model_validate(planned["plan"])

    def progress(done: int, total: int) -> None:
        report.progress(done, total, "checks")

    verdict = verify(
        Path(pulled["folder"]),
        request.variant,
        plan,
        source_identity=pulled["identity"],
        source_manifest=Manifest.model_validate(pulled["manifest"]),
        progress=progress,
        cache=request.data_dir / "cache",
    )
    VariantStore(request.data_dir, planned["resolved_spec"]["variant"]).write_report(request.job, verdict)
    if not verdict.passed:
        raise _failure(verdict)
    return {"summary": summarize(plan, verdict).model_dump(mode="json")}


if __name__ == "__main__":
    stage.main(run)
