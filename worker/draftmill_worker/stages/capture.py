"""Capture: what texts tell of a head. Hidden states of the target in an engine, and which tokens can be drafted."""

import json
from pathlib import Path
from typing import Any

import torch

from draftmill.heads import Coverage, DraftVocabOptions
from draftmill.states import Stage
from draftmill_worker import devices, stage
from draftmill_worker.bench import memory
from draftmill_worker.bench.engine_args import check_remote_code
from draftmill_worker.bench.engine_env import cache_bytes
from draftmill_worker.bench.subject import Directory
from draftmill_worker.bench.turns import turn
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.files import write_atomic
from draftmill_worker.heads import choosing, texts
from draftmill_worker.heads.capture import MANIFEST, Place, capture
from draftmill_worker.heads.mill import CAPTURE, IDS, ids_sha256
from draftmill_worker.heads.rows import FILE, open_rows
from draftmill_worker.stages.engines import directory


def _capture(request: stage.StageRequest, report: stage.Reporter, reader: Directory) -> str | None:
    """SHA-256 of the rows; None where none are read."""
    options, pulled, target = request.spec.capture, request.previous[Stage.PULL], reader.folder
    if options is None or not request.spec.reads_hidden_states:
        return None
    check_remote_code(options, {"capture.target": reader.repo}, request.settings.trust_remote_code_repos)
    read = texts.load(options.texts, _path(pulled["capture_texts"]))
    place = Place(
        out=request.scratch / CAPTURE,
        logs=request.folder,
        scratch=request.scratch,
        boot_seconds=request.settings.boot_seconds,
        cache=request.data_dir / "cache",
        visible=devices.visible(request.devices),
    )
    with turn(request.data_dir, request.devices or (devices.CPU,), report):
        args, shown = options.engine_args, place.visible.get(devices.VISIBLE)
        cache = cache_bytes(options.engine_env)
        memory.require(reader.weight_bytes, cache, args.gpu_memory_utilization, args.tensor_parallel_size or 1, shown)
        manifest = capture(
            target,
            open_checkpoint(target).config,
            options,
            read,
            place=place,
            progress=lambda done: report.progress(done, len(read), "prompts"),
        )
    # The rows go with the attempt's scratch; what they were stays with the job.
    write_atomic(request.folder / MANIFEST, manifest.model_dump_json(indent=1).encode())
    report.log("info", f"{manifest.rows} rows of {manifest.texts} texts, {manifest.held_out_rows} of them held out")
    return manifest.sha256


def _choose(
    request: stage.StageRequest, options: DraftVocabOptions, target: Path
) -> tuple[torch.Tensor, tuple[Coverage, ...]]:
    pulled = request.previous[Stage.PULL]
    source = Path(pulled["folder"])
    subject = choosing.read_subject(source, open_checkpoint(source), target)
    if options.ids is not None:
        return choosing.given(subject, Path(pulled["draft_ids"])), ()
    if options.own_outputs:
        return choosing.from_rows(subject, open_rows(request.scratch / CAPTURE / FILE), options.size or 0)
    if options.count_over is None:
        raise ValueError("nothing was given to count over")
    said = choosing.said(options.count_over, _path(pulled["draft_corpus"]))
    return choosing.from_texts(subject, said, options.size or 0)


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)


def run(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    pulled, options = request.previous[Stage.PULL], request.spec.draft_vocab
    reader = directory(pulled.get("capture_target") or pulled)
    rows = _capture(request, report, reader)
    if options is None:
        return {"rows_sha256": rows, "ids_sha256": None, "coverage": []}
    ids, table = _choose(request, options, reader.folder)
    for line in table:
        report.log("info", f"{line.size} tokens cover {line.covered:.2%} of held-out text")
    (request.scratch / CAPTURE).mkdir(parents=True, exist_ok=True)
    write_atomic(request.scratch / CAPTURE / IDS, json.dumps(ids.tolist()).encode())
    coverage = [one.model_dump(mode="json") for one in table]
    return {"rows_sha256": rows, "ids_sha256": ids_sha256(ids), "coverage": coverage}


if __name__ == "__main__":
    stage.main(run)
