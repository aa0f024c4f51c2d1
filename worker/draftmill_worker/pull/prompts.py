"""A file of prompts, from a local folder that the operator allows or from a dataset repository of the Hub."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from draftmill.benchmarks import PromptSet
from draftmill.jobs import RepoSource
from draftmill.problems import Offender, ProblemError
from draftmill_worker.files import write_atomic
from draftmill_worker.pull.catalog import check_source, resolve_commit
from draftmill_worker.pull.client import HubClient
from draftmill_worker.pull.roots import allowed_target, not_allowed, opened
from draftmill_worker.pull.settings import HubSettings

MAX_BYTES = 64 << 20
COPY_BYTES = 1 << 22


def bring_prompts(asked: PromptSet, sources_dir: Path, roots: Sequence[Path], settings: HubSettings) -> Path | None:
    """The file in `sources_dir/prompts/<sha256>.jsonl`; None for a set that ships.

    Raises ProblemError: prompts-invalid, path-not-allowed, path-not-found, and what the Hub answers.
    """
    if asked.path is not None:
        data = _read(asked.path.path, roots)
    elif asked.repo is not None and asked.file is not None:
        data = _fetch(asked.repo, asked.file, settings)
    else:
        return None
    kept = sources_dir / "prompts" / f"{hashlib.sha256(data).hexdigest()}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    if not kept.exists():
        write_atomic(kept, data)
    return kept


def bring_corpus(
    asked: PromptSet, sources_dir: Path, scratch: Path, roots: Sequence[Path], settings: HubSettings
) -> Path | None:
    """As `bring_prompts`, and of a local file any length: its copy is in `scratch`, under its path's digest."""
    if asked.path is None:
        return bring_prompts(asked, sources_dir, roots, settings)
    path = asked.path.path
    if not allowed_target(Path(path), roots):
        raise not_allowed([path])
    kept = scratch / f"corpus-{hashlib.sha256(path.encode()).hexdigest()[:16]}.jsonl"
    try:
        with (
            opened(Path(path), roots) as descriptor,
            os.fdopen(os.dup(descriptor), "rb") as file,
            kept.open("wb") as out,
        ):
            shutil.copyfileobj(file, out, COPY_BYTES)
    except OSError as error:
        offender = Offender(where=path, message=error.strerror or "cannot be read")
        raise ProblemError("path-not-found", f"{path}: {offender.message}", [offender]) from error
    return kept


def _read(path: str, roots: Sequence[Path]) -> bytes:
    if not allowed_target(Path(path), roots):
        raise not_allowed([path])
    try:
        with opened(Path(path), roots) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            return _bounded(file.read(MAX_BYTES + 1), path)
    except OSError as error:
        offender = Offender(where=path, message=error.strerror or "cannot be read")
        raise ProblemError("path-not-found", f"{path}: {offender.message}", [offender]) from error


def _fetch(source: RepoSource, file: str, settings: HubSettings) -> bytes:
    if ".." in file.split("/"):
        raise ProblemError(
            "unsafe-path", f"{file} is no path in a repository", [Offender(where=file, message="leaves it")]
        )
    check_source(source.repo, source.revision)
    with HubClient(settings) as client:
        commit = resolve_commit(client, source.repo, source.revision, "datasets")
        url = f"{settings.endpoint}/datasets/{source.repo}/resolve/{commit}/{quote(file)}"
        return client.document(url, f"{source.repo}@{commit[:12]}/{file}", MAX_BYTES)[0]


def _bounded(data: bytes, what: str) -> bytes:
    if len(data) > MAX_BYTES:
        raise ProblemError("prompts-invalid", f"{what} has more than {MAX_BYTES} bytes")
    return data
