"""Pull: the source's files, read-only under `sources/`, hashed and checked."""

from typing import Any

from draftmill.digests import digest
from draftmill.jobs import PathSource
from draftmill_worker import stage
from draftmill_worker.checkpoint.identity import fingerprint
from draftmill_worker.pull import LocalSettings, Pulled, pull_path, pull_repo
from draftmill_worker.stages.hub import hub_settings


def _pull(request: stage.StageRequest, report: stage.Reporter) -> Pulled:
    source, settings, sources = request.spec.source, request.settings, request.data_dir / "sources"

    def progress(done: int, total: int) -> None:
        report.progress(done, total, "bytes")

    if isinstance(source, PathSource):
        local = LocalSettings(link=settings.link_local, disk_budget_bytes=settings.disk_budget_bytes)
        return pull_path(source.path, settings.allowed_roots, sources, local, progress)
    return pull_repo(source.repo, source.revision, sources, hub_settings(settings), progress)


def run(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    pulled = _pull(request, report)
    for note in pulled.notes:
        report.log("warning", note)
    size = sum(file.size for file in pulled.manifest.files)
    report.progress(size, size, "bytes")
    report.log("info", "source was here already" if pulled.cached else "source pulled")
    return {
        "folder": str(pulled.folder),
        "repo": pulled.repo,
        "commit": pulled.commit,
        "manifest": pulled.manifest.model_dump(mode="json"),
        "manifest_sha256": digest(pulled.manifest),
        "identity": fingerprint(pulled.folder),
    }


if __name__ == "__main__":
    stage.main(run)
