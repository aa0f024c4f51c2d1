"""Bench: acceptance length of the sealed variant beside its control, in a real engine, and the gate's verdict."""

from typing import Any

from draftmill.benchmarks import Acceptance, Benchmark, Verdict
from draftmill.jobs import AcceptanceSummary, ResolvedSpec, Summary
from draftmill.plans import Plan
from draftmill.problems import Offender, ProblemError
from draftmill.states import Stage
from draftmill_worker import stage
from draftmill_worker.bench.run import Question, bench, profile
from draftmill_worker.bench.subject import Directory, Subject
from draftmill_worker.stages import engines
from draftmill_worker.variants import VariantStore


def _subject(request: stage.StageRequest, store: VariantStore) -> Subject:
    pulled, planned = request.previous[Stage.PULL], request.previous[Stage.PLAN]
    source = engines.directory(pulled)
    resolved = ResolvedSpec.model_validate(planned["resolved_spec"])
    return Subject(
        target=engines.directory(pulled["target"]),
        source=source,
        variant=Directory(store.folder, store.manifest(), source.repo, source.commit, resolved.variant),
        plan=Plan.model_validate(planned["plan"]),
    )


def _measure(
    request: stage.StageRequest, report: stage.Reporter, benchmark: Benchmark, store: VariantStore
) -> Acceptance:
    question = Question(
        _subject(request, store),
        benchmark,
        engines.prompts_file(request.previous[Stage.PULL]),
        request.settings.trust_remote_code_repos,
    )
    return bench(question, engines.place(request), report)


def run(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    """Raises FailedError with the summary when the gate fails: the variant and its numbers are kept."""
    benchmark, planned = request.spec.benchmark, request.previous[Stage.PLAN]
    if benchmark is None:
        raise ValueError("the job has no benchmark")
    store = VariantStore(request.data_dir, planned["resolved_spec"]["variant"])
    acceptance = _measure(request, report, benchmark, store)
    store.write_acceptance(request.job, acceptance, profile(acceptance))
    before = planned["summary"] or request.previous[Stage.SEAL]["summary"]
    summary = Summary.model_validate(before).model_copy(
        update={"acceptance": AcceptanceSummary.of(request.job, acceptance)}
    )
    value = {"summary": summary.model_dump(mode="json")}
    gate = acceptance.gate
    if gate.verdict is Verdict.FAILED:
        offenders = [Offender(where="benchmark.gate", message=failure) for failure in gate.failures]
        raise stage.FailedError(ProblemError("gate-failed", "; ".join(gate.failures), offenders).problem, value)
    return value


if __name__ == "__main__":
    stage.main(run)
