"""What lies in the data directory about a job: its plan, its verify report, its sealed variant. Read only."""

from pathlib import Path

from pydantic import JsonValue

from draftmill._model import Model
from draftmill.jobs import Job
from draftmill.plans import Plan
from draftmill.problems import Problem, ProblemError
from draftmill.reports import Artifacts, Manifest, ManifestFile, VerifyReport
from draftmill.states import JobState, Stage


class _StageResult(Model):
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
        """The sealed variant's plan, else the newest attempt's. Raises ProblemError("not-ready")."""
        if job.state is JobState.SUCCEEDED and job.resolved_spec is not None:
            sealed = self._variant(job.resolved_spec.variant) / "plan.json"
            if sealed.is_file():
                return Plan.model_validate_json(sealed.read_bytes())
        plan = self._stage_value(job, Stage.PLAN, "plan")
        if plan is None:
            raise _not_ready(job, "plan")
        return Plan.model_validate(plan)

    def verify_report(self, job: Job) -> VerifyReport:
        """The job's own report, also of a variant that failed; for a variant answered from the store, the newest report
        on it. Raises ProblemError("not-ready")."""
        evidence = self._evidence(job)
        if evidence is not None:
            return VerifyReport.model_validate_json(evidence.read_bytes())
        report = self._stage_value(job, Stage.VERIFY, "report")
        if report is None:
            raise _not_ready(job, "verify report")
        return VerifyReport.model_validate(report)

    def artifacts(self, job: Job) -> Artifacts:
        """The files of the job's sealed variant. Raises ProblemError("not-ready") for a job that did not succeed."""
        if job.state is not JobState.SUCCEEDED or job.resolved_spec is None:
            raise _not_ready(job, "sealed variant")
        variant = job.resolved_spec.variant
        manifest = self._data / "evidence" / variant / "manifest.json"
        if not (manifest.is_file() and self._variant(variant).is_dir()):
            raise ProblemError("expired", f"variant {variant} was removed from the store")
        files = Manifest.model_validate_json(manifest.read_bytes()).files
        return Artifacts(variant=variant, files=files)

    def artifact(self, job: Job, path: str) -> tuple[Path, ManifestFile]:
        """One file of the manifest, strictly inside the variant's folder. Raises ProblemError: not-ready, not-found."""
        artifacts = self.artifacts(job)
        listed = next((file for file in artifacts.files if file.path == path), None)
        folder = self._variant(artifacts.variant).resolve()
        found = None if listed is None else (folder / listed.path).resolve()
        if listed is None or found is None or not found.is_relative_to(folder) or not found.is_file():
            raise ProblemError("not-found", "the variant has no such file")
        return found, listed

    def _variant(self, digest: str) -> Path:
        return self._data / "variants" / digest

    def _evidence(self, job: Job) -> Path | None:
        if job.resolved_spec is None:
            return None
        folder = self._data / "evidence" / job.resolved_spec.variant
        own = folder / job.id / "verify.json"
        if own.is_file():
            return own
        if job.state is not JobState.SUCCEEDED:
            return None
        # Job ids sort by time.
        return max(folder.glob("*/verify.json"), key=lambda report: report.parent.name, default=None)

    def _stage_value(self, job: Job, stage: Stage, name: str) -> JsonValue:
        for attempt in reversed(job.attempts):
            path = self._data / "jobs" / job.id / str(attempt.number) / stage / "result.json"
            if path.is_file():
                value = _StageResult.model_validate_json(path.read_bytes()).value.get(name)
                if value is not None:
                    return value
        return None
