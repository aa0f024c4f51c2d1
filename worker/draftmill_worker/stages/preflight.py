"""Preflight: the plan from headers alone. Runs in a light process, without torch."""

from draftmill.jobs import JobSpec, PathSource
from draftmill.plans import Plan, Preflight
from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.pull import LocalSettings, read_local, read_remote
from draftmill_worker.quantize.existing import read_drafter
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.settings import StageSettings
from draftmill_worker.stages.hub import hub_settings


def preflight(spec: JobSpec, settings: StageSettings) -> Preflight:
    """Raises ProblemError where a job would be refused."""
    if isinstance(spec.source, PathSource):
        checkpoint = read_local(spec.source.path, settings.allowed_roots, LocalSettings())
        return Preflight(ok=True, download_bytes=0, plan=_plan(checkpoint, spec))
    commit, checkpoint, download_bytes = read_remote(spec.source.repo, spec.source.revision, hub_settings(settings))
    return Preflight(ok=True, commit=commit, download_bytes=download_bytes, plan=_plan(checkpoint, spec))


def _plan(checkpoint: Checkpoint, spec: JobSpec) -> Plan:
    drafter = read_drafter(checkpoint, spec.fixed_format, spec.quantize)
    return make_plan(checkpoint, drafter, spec.fixed_format, spec.quantize)
