"""Pull: the source's files, read-only under `sources/`, hashed and checked."""

from collections.abc import Callable
from typing import Any

from draftmill.benchmarks import Benchmark, PromptSet
from draftmill.choices import KEEP
from draftmill.digests import digest
from draftmill.jobs import PathSource, RepoSource
from draftmill_worker import stage
from draftmill_worker.bench.prompts import load as load_prompts
from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.checkpoint.identity import fingerprint
from draftmill_worker.pull import LocalSettings, Pulled, pull_path, pull_repo
from draftmill_worker.pull.prompts import bring_corpus, bring_prompts
from draftmill_worker.quantize.existing import read_drafter
from draftmill_worker.stages.hub import hub_settings

Source = RepoSource | PathSource


def _pull(
    request: stage.StageRequest, report: stage.Reporter, source: Source, check: Callable[[Checkpoint], object]
) -> Pulled:
    settings, sources = request.settings, request.data_dir / "sources"

    def progress(done: int, total: int) -> None:
        report.progress(done, total, "bytes")

    if isinstance(source, PathSource):
        local = LocalSettings(link=settings.link_local, disk_budget_bytes=settings.disk_budget_bytes)
        return pull_path(source.path, settings.allowed_roots, sources, local, progress, check=check)
    return pull_repo(source.repo, source.revision, sources, hub_settings(settings), progress, check=check)


def _any(checkpoint: Checkpoint) -> None:
    """A target may be of any kind: the engine decides."""
    del checkpoint


def _reading(request: stage.StageRequest) -> Callable[[Checkpoint], object]:
    """What refuses a drafter before its weights come."""
    spec = request.spec
    return (lambda found: read_drafter(found, spec.fixed_format, spec.quantize)) if spec.quantize.merge else detect


def _described(pulled: Pulled) -> dict[str, Any]:
    return {
        "folder": str(pulled.folder),
        "repo": pulled.repo,
        "commit": pulled.commit,
        "manifest": pulled.manifest.model_dump(mode="json"),
        "bytes_pulled": 0 if pulled.cached else sum(file.size for file in pulled.manifest.files),
    }


def _for_benchmark(request: stage.StageRequest, report: stage.Reporter, benchmark: Benchmark) -> dict[str, Any]:
    """What a benchmark needs beside the drafter: found wanting before anything is built."""
    prompts = bring_prompts(
        benchmark.prompts,
        request.data_dir / "sources",
        request.settings.allowed_roots,
        hub_settings(request.settings),
    )
    load_prompts(benchmark.prompts, prompts)
    target = _pull(request, report, benchmark.target, _any)
    return {"target": _described(target), "prompts": None if prompts is None else str(prompts)}


def _for_heads(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    """What is read and counted for a head, and the target that reads it where that is not the source."""
    capture, vocab = request.spec.capture, request.spec.draft_vocab

    def bring(asked: PromptSet | None) -> str | None:
        if asked is None:
            return None
        settings, sources = request.settings, request.data_dir / "sources"
        file = bring_corpus(asked, sources, request.scratch, settings.allowed_roots, hub_settings(settings))
        return None if file is None else str(file)

    target = None if capture is None or capture.target is None else _pull(request, report, capture.target, _any)
    ids = None if vocab is None or vocab.ids is None else PromptSet(path=vocab.ids)
    return {
        "capture_target": None if target is None else _described(target),
        "capture_texts": None if capture is None else bring(capture.texts),
        "draft_corpus": None if vocab is None else bring(vocab.count_over),
        "draft_ids": bring(ids),
    }


def run(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    benchmark, heads = request.spec.benchmark, request.spec.format == KEEP
    extra = {} if benchmark is None else _for_benchmark(request, report, benchmark)
    if heads:
        extra = _for_heads(request, report)
    # A head may be a whole target's: what it is, the stages that rewrite it find out.
    pulled = _pull(request, report, request.spec.source, _any if heads else _reading(request))
    for note in pulled.notes:
        report.log("warning", note)
    size = sum(file.size for file in pulled.manifest.files)
    report.progress(size, size, "bytes")
    report.log("info", "source was here already" if pulled.cached else "source pulled")
    return {
        **_described(pulled),
        **extra,
        "manifest_sha256": digest(pulled.manifest),
        "identity": fingerprint(pulled.folder),
    }


if __name__ == "__main__":
    stage.main(run)
