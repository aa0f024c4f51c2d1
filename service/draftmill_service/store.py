"""What lies in the data directory about a job: its plan, its verify report, its sealed variant. Read only."""

from pathlib import Path

from pydantic import JsonValue

from draftmill._model import Model
from draftmill.benchmarks import Acceptance
from draftmill.choices import AUTO, KEEP, Choice
from draftmill.heads import HeadPlan
from draftmill.jobs import AcceptanceSummary, Job
from draftmill.plans import Plan
from draftmill.problems import Problem, ProblemError
from draftmill.reports import Artifacts, Manifest, ManifestFile, VerifyReport
from draftmill.states import JobState, Reason, Stage
from draftmill_service.retention.tombstones import read_tombstone

ACCEPTANCE = "acceptance.json"


class StageResult(Model):
    """A stage's result.json."""

    value: dict[str, JsonValue]
    problem: Problem | None = None
    seconds: float


def _not_ready(job: Job, what: str) -> ProblemError:
    return ProblemError("not-ready", f"there is no {what}: the job is {job.state}")


class Store:
    def __init__(self, data_dir: Path) -> None:
        self._data = data_dir

    def plan(self, job: Job) -> Plan:
        """The sealed variant's plan, else the newest attempt's. Raises ProblemError: not-ready, and not-found for a job
        that rewrites a head, which has no plan of tensors."""
        if job.spec.format == KEEP:
            raise ProblemError("not-found", "a job with `format: keep` has no plan of tensors; see its head")
        if job.state is JobState.SUCCEEDED and job.resolved_spec is not None:
            sealed = self._variant(job.resolved_spec.variant) / "plan.json"
            if sealed.is_file():
                return Plan.model_validate_json(sealed.read_bytes())
        plan = self._planned(job)
        if plan is None:
            stone = read_tombstone(self._data / "jobs" / job.id / "tombstone.json")
            if stone is not None and job.done:
                raise ProblemError("expired", f"the job's plan {stone.says()}")
            raise _not_ready(job, "plan")
        return Plan.model_validate(plan)

    def head(self, job: Job) -> HeadPlan:
        """What the variant of a job with `format: keep` is, beside its source. Raises ProblemError: not-found for any
        other job, not-ready."""
        if job.spec.format != KEEP:
            raise ProblemError("not-found", "only a job with `format: keep` has a rewritten head")
        if job.state is JobState.SUCCEEDED and job.resolved_spec is not None:
            sealed = self._variant(job.resolved_spec.variant) / "head.json"
            if sealed.is_file():
                return HeadPlan.model_validate_json(sealed.read_bytes())
            raise ProblemError("expired", "the variant was removed from the store")
        raise _not_ready(job, "head")

    def verify_report(self, job: Job) -> VerifyReport:
        """The job's own report, also of a variant that failed; for a variant answered from the store, the newest report
        on it. Raises ProblemError: not-ready, and expired for a job that succeeded whose reports were removed."""
        if job.resolved_spec is not None:
            variant = job.resolved_spec.variant
            own = self._evidence(variant) / job.id / "verify.json"
            if own.is_file():
                return VerifyReport.model_validate_json(own.read_bytes())
            newest = self._newest_report(variant) if job.state is JobState.SUCCEEDED else None
            if newest is not None:
                return newest
            if job.state is JobState.SUCCEEDED:
                raise ProblemError("expired", f"the reports on variant {variant} were removed from the store")
        raise _not_ready(job, "verify report")

    def acceptance(self, job: Job) -> Acceptance:
        """The job's own benchmark, also of a variant that failed its gate; for a job without one, the newest of its
        variant. Raises ProblemError("not-ready")."""
        if job.resolved_spec is not None:
            variant = job.resolved_spec.variant
            own = self._evidence(variant) / job.id / ACCEPTANCE
            if own.is_file():
                return Acceptance.model_validate_json(own.read_bytes())
            newest = self._newest_acceptance(variant)
            answered = job.state is JobState.SUCCEEDED or job.reason is Reason.GATE_FAILED
            if newest is not None and job.spec.benchmark is None and answered:
                return Acceptance.model_validate_json(newest.read_bytes())
        raise _not_ready(job, "benchmark")

    def choice(self, job: Job) -> Choice:
        """What a job with `format: auto` weighed. Raises ProblemError: not-found for any other, not-ready."""
        if job.spec.format != AUTO:
            raise ProblemError("not-found", f"job {job.id} names its format: nothing was chosen for it")
        if job.resolved_spec is not None:
            own = self._evidence(job.resolved_spec.variant) / job.id / "choice.json"
            if own.is_file():
                return Choice.model_validate_json(own.read_bytes())
        raise _not_ready(job, "choice")

    def artifacts(self, job: Job) -> Artifacts:
        """The files of the job's sealed variant.

        Raises ProblemError: not-ready for a job that did not succeed, gate-failed where the gate was why, expired for a
        variant that was removed, verify-failed for one that failed a later verification.
        """
        if job.reason is Reason.GATE_FAILED:
            detail = "the variant failed its gate; a job with accept_failed_gate answers with it as it is"
            raise ProblemError("gate-failed", detail, [] if job.problem is None else job.problem.offenders)
        if job.state is not JobState.SUCCEEDED or job.resolved_spec is None:
            raise _not_ready(job, "sealed variant")
        variant = job.resolved_spec.variant
        manifest = self._evidence(variant) / "manifest.json"
        if not (manifest.is_file() and self._variant(variant).is_dir()):
            stone = read_tombstone(self._evidence(variant) / "tombstone.json")
            what = "was removed from the store" if stone is None else stone.says()
            raise ProblemError("expired", f"variant {variant} {what}; the same request builds it again")
        newest = self._newest_report(variant)
        if newest is None or not newest.passed:
            raise ProblemError("verify-failed", f"the newest verify report on variant {variant} is not a pass")
        files = Manifest.model_validate_json(manifest.read_bytes()).files
        return Artifacts(variant=variant, files=files, acceptance=self._summary_of_newest(variant))

    def artifact(self, job: Job, path: str) -> tuple[Path, ManifestFile, AcceptanceSummary | None]:
        """One file of the manifest, strictly inside the variant's folder, and the newest benchmark of the variant.

        Raises as `artifacts` does, and not-found.
        """
        artifacts = self.artifacts(job)
        listed = next((file for file in artifacts.files if file.path == path), None)
        folder = self._variant(artifacts.variant).resolve()
        found = None if listed is None else (folder / listed.path).resolve()
        if listed is None or found is None or not found.is_relative_to(folder) or not found.is_file():
            raise ProblemError("not-found", "the variant has no such file")
        return found, listed, artifacts.acceptance

    def _newest_acceptance(self, digest: str) -> Path | None:
        # Job ids sort by time.
        found = self._evidence(digest).glob(f"*/{ACCEPTANCE}")
        return max(found, key=lambda path: path.parent.name, default=None)

    def _summary_of_newest(self, digest: str) -> AcceptanceSummary | None:
        newest = self._newest_acceptance(digest)
        if newest is None:
            return None
        return AcceptanceSummary.of(newest.parent.name, Acceptance.model_validate_json(newest.read_bytes()))

    def _variant(self, digest: str) -> Path:
        return self._data / "variants" / digest

    def _evidence(self, digest: str) -> Path:
        return self._data / "evidence" / digest

    def _newest_report(self, digest: str) -> VerifyReport | None:
        # Job ids sort by time.
        reports = self._evidence(digest).glob("*/verify.json")
        newest = max(reports, key=lambda report: report.parent.name, default=None)
        return None if newest is None else VerifyReport.model_validate_json(newest.read_bytes())

    def _planned(self, job: Job) -> JsonValue:
        for attempt in reversed(job.attempts):
            path = self._data / "jobs" / job.id / str(attempt.number) / Stage.PLAN / "result.json"
            if path.is_file():
                plan = StageResult.model_validate_json(path.read_bytes()).value.get("plan")
                if plan is not None:
                    return plan
        return None
