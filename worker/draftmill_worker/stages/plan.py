"""Plan: every tensor's fate, what the spec resolves to, and whether that variant is in the store already."""

from pathlib import Path
from typing import Any

from draftmill.benchmarks import Verdict
from draftmill.choices import AUTO, KEEP, Choice
from draftmill.digests import digest
from draftmill.formats import Format
from draftmill.jobs import AcceptanceSummary, PathSource, QuantizeOptions, ResolvedSource, ResolvedSpec
from draftmill.plans import Plan
from draftmill.problems import Offender, Problem, ProblemError
from draftmill.states import Stage
from draftmill_worker import stage
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.heads.build import heads_build
from draftmill_worker.heads.draft_head import has_mtp
from draftmill_worker.quantize.build import QUANTIZER_BUILD
from draftmill_worker.quantize.existing import read_drafter
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.variants import VariantStore, variant_digest


def _asked(request: stage.StageRequest) -> tuple[Format, QuantizeOptions, Choice | None]:
    """What is to be made: as the job says, or as was chosen for it."""
    spec = request.spec
    if spec.format != AUTO:
        return spec.fixed_format, spec.quantize, None
    choice = Choice.model_validate(request.previous[Stage.CHOOSE]["choice"])
    chosen = choice.choice
    options = {"exclude": (*spec.quantize.exclude, *chosen.exclude), "nvfp4_scale_search": chosen.scale_search}
    return chosen.format, spec.quantize.model_copy(update=options), choice


def _source(request: stage.StageRequest) -> ResolvedSource:
    source, pulled = request.spec.source, request.previous[Stage.PULL]
    return ResolvedSource(
        repo=pulled["repo"],
        commit=pulled["commit"],
        path=source.path if isinstance(source, PathSource) else None,
        manifest_sha256=pulled["manifest_sha256"],
    )


def _resolve(request: stage.StageRequest, plan: Plan, quantize: QuantizeOptions) -> ResolvedSpec:
    pulled = request.previous[Stage.PULL]
    return ResolvedSpec(
        source=_source(request),
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


def _resolve_head(request: stage.StageRequest) -> ResolvedSpec:
    """Of a job that rewrites a head: what its capture gave is part of the variant's address."""
    spec, pulled, learned = request.spec, request.previous[Stage.PULL], request.previous[Stage.CAPTURE]
    build = heads_build(request.settings.threads)
    made_of = {
        "manifest_sha256": pulled["manifest_sha256"],
        "head": None if spec.head is None else spec.head.model_dump(mode="json"),
        "layout": None if spec.draft_vocab is None else spec.draft_vocab.layout,
        "rows_sha256": learned["rows_sha256"],
        "ids_sha256": learned["ids_sha256"],
        "coverage": learned["coverage"],
        "quantizer": build,
    }
    return ResolvedSpec(
        source=_source(request),
        format=KEEP,
        quantize=spec.quantize,
        head=spec.head,
        rows_sha256=learned["rows_sha256"],
        draft_ids_sha256=learned["ids_sha256"],
        family="mtp" if has_mtp(open_checkpoint(Path(pulled["folder"])).tensors) else "native",
        quantizer=build,
        variant=digest(made_of),
    )


def _run_head(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    resolved = _resolve_head(request)
    summary = VariantStore(request.data_dir, resolved.variant).find()
    if summary is not None:
        report.log("info", f"variant {resolved.variant} was sealed before")
    return {
        "plan": None,
        "resolved_spec": resolved.model_dump(mode="json"),
        "cached": summary is not None,
        "summary": None if summary is None else summary.model_dump(mode="json"),
        "withheld": None,
    }


def run(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    if request.spec.format == KEEP:
        return _run_head(request, report)
    checkpoint = open_checkpoint(Path(request.previous[Stage.PULL]["folder"]))
    format, quantize, choice = _asked(request)
    plan = make_plan(checkpoint, read_drafter(checkpoint, format, quantize), format, quantize)
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
