"""Plan: every tensor's fate, what the spec resolves to, and whether that variant is in the store already."""

from pathlib import Path
from typing import Any

from draftmill.benchmarks import Verdict
from draftmill.choices import AUTO, Choice
from draftmill.formats import Format
from draftmill.jobs import AcceptanceSummary, PathSource, QuantizeOptions, ResolvedSource, ResolvedSpec
from draftmill.plans import Plan
from draftmill.problems import Offender, Problem, ProblemError
from draftmill.states import Stage
from draftmill_worker import stage
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.quantize.build import QUANTIZER_BUILD
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.variants import VariantStore, variant_digest


def _asked(request: stage.StageRequest) -> tuple[Format, QuantizeOptions, Choice | None]:
    """What is to be made: as the job says, or as was chosen for it."""
    spec = request.spec
    if spec.format != AUTO:
        return spec.format, spec.quantize, None
    choice = Choice.model_validate(request.previous[Stage.CHOOSE]["choice"])
    exclude = (*spec.quantize.exclude, *choice.choice.exclude)
    return choice.choice.format, spec.quantize.model_copy(update={"exclude": exclude}), choice


def _resolve(request: stage.StageRequest, plan: Plan, quantize: QuantizeOptions) -> ResolvedSpec:
    spec, pulled = request.spec, request.previous[Stage.PULL]
    return ResolvedSpec(
        source=ResolvedSource(
            repo=pulled["repo"],
            commit=pulled["commit"],
            path=spec.source.path if isinstance(spec.source, PathSource) else None,
            manifest_sha256=pulled["manifest_sha256"],
        ),
        format=plan.format,
        quantize=quantize,
        family=plan.family,
        quantizer=QUANTIZER_BUILD,
        variant=variant_digest(pulled["manifest_sha256"], plan.format, quantize, QUANTIZER_BUILD),
    )


def _withheld(request: stage.StageRequest, newest: AcceptanceSummary | None) -> Problem | None:
    """Why the variant is not for this job: it failed a gate, and nothing newer says otherwise."""
    spec = request.spec
    if spec.benchmark is not None or spec.accept_failed_gate or newest is None or newest.verdict is Verdict.PASSED:
        return None
    offenders = [Offender(where=f"gate of job {newest.job}", message=failure) for failure in newest.failures]
    offenders += [Offender(where="receipt", message=boot) for boot in newest.receipts]
    detail = (
        f"this variant failed the gate of job {newest.job}; a newer benchmark that passes clears it, and"
        " accept_failed_gate takes it as it is"
    )
    return ProblemError("gate-failed", detail, offenders).problem


def run(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    checkpoint = open_checkpoint(Path(request.previous[Stage.PULL]["folder"]))
    format, quantize, choice = _asked(request)
    plan = make_plan(checkpoint, detect(checkpoint), format, quantize)
    for warning in plan.warnings:
        report.log("warning", warning)
    resolved = _resolve(request, plan, quantize)
    store = VariantStore(request.data_dir, resolved.variant)
    if choice is not None:
        store.write_choice(request.job, choice)
    summary, withheld = store.find(), _withheld(request, store.newest_acceptance())
    if summary is not None:
        report.log("info", f"variant {resolved.variant} was sealed before")
    return {
        "plan": plan.model_dump(mode="json", by_alias=True),
        "resolved_spec": resolved.model_dump(mode="json"),
        "cached": summary is not None,
        "summary": None if summary is None else summary.model_dump(mode="json"),
        "withheld": None if withheld is None else withheld.model_dump(mode="json"),
    }


if __name__ == "__main__":
    stage.main(run)
