"""A file of prompts, from a local folder that the operator allows or from a dataset repository of the Hub."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from draftmill.benchmarks import PromptSet
from draftmill.jobs import RepoSource
from draftmill.problems import Offender, ProblemError
from draftmill_worker.files import write_atomic
from draftmill_worker.pull.roots import allowed_target, not_allowed, opened
from draftmill_worker.settings import StageSettings

MAX_BYTES = 64 << 20


def bring_prompts(asked: PromptSet, sources_dir: Path, settings: StageSettings) -> Path | None:
    """The file in `sources_dir/prompts/<sha256>.jsonl`; None for a set that ships.

    Raises ProblemError: prompts-invalid, path-not-allowed, path-not-found, and what the Hub answers.
    """
    if asked.path is not None:
        data = _read(asked.path.path, settings.allowed_roots)
    elif asked.repo is not None and asked.file is not None:
        data = _fetch(asked.repo, asked.file, settings.hub_endpoint)
    else:
        return None
    kept = sources_dir / "prompts" / f"{hashlib.sha256(data).hexdigest()}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    if not kept.exists():
        write_atomic(kept, data)
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


def _fetch(source: RepoSource, file: str, endpoint: str) -> bytes:
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    api, what = HfApi(endpoint=endpoint), f"{source.repo}@{source.revision}/{file}"
    try:
        commit = api.dataset_info(source.repo, revision=source.revision, timeout=30).sha
        entries = api.get_paths_info(source.repo, [file], revision=commit, repo_type="dataset")
        if not entries or getattr(entries[0], "size", MAX_BYTES + 1) > MAX_BYTES:
            raise ProblemError("prompts-invalid", f"{what} is no file of at most {MAX_BYTES} bytes")
        path = api.hf_hub_download(source.repo, file, revision=commit, repo_type="dataset")
    except RevisionNotFoundError as error:
        raise ProblemError("revision-not-found", f"{source.repo} has no revision {source.revision}") from error
    except RepositoryNotFoundError as error:
        raise ProblemError("not-found-or-private", f"there is no dataset {source.repo} to be seen") from error
    except (HfHubHTTPError, httpx2.HTTPError) as error:
        raise ProblemError("hub-unavailable", f"{what}: {type(error).__name__}") from error
    return _bounded(Path(path).read_bytes(), what)


def _bounded(data: bytes, what: str) -> bytes:
    if len(data) > MAX_BYTES:
        raise ProblemError("prompts-invalid", f"{what} has more than {MAX_BYTES} bytes")
    return data
