"""Preflight: the plan from headers alone. Runs in a light process, without torch."""

from pathlib import Path

from draftmill.jobs import JobSpec, PathSource
from draftmill.plans import Plan, Preflight
from draftmill_worker.checkpoint.checkpoint import Checkpoint, open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.pull import read_remote
from draftmill_worker.pull.roots import newest_export, resolve_folder
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.settings import StageSettings
from draftmill_worker.stages.hub import hub_settings


def preflight(spec: JobSpec, settings: StageSettings) -> Preflight:
    """Raises ProblemError where a job would be refused."""
    if isinstance(spec.source, PathSource):
        checkpoint = open_checkpoint(_local(spec.source.path, settings))
        return Preflight(ok=True, download_bytes=0, plan=_plan(checkpoint, spec))
    commit, checkpoint, download_bytes = read_remote(spec.source.repo, spec.source.revision, hub_settings(settings))
    return Preflight(ok=True, commit=commit, download_bytes=download_bytes, plan=_plan(checkpoint, spec))


def _local(path: str, settings: StageSettings) -> Path:
    folder = resolve_folder(path, settings.allowed_roots)
    export = newest_export(folder)
    return folder if export is None else resolve_folder(export, settings.allowed_roots)


def _plan(checkpoint: Checkpoint, spec: JobSpec) -> Plan:
    return make_plan(checkpoint, detect(checkpoint), spec.format, spec.quantize)
