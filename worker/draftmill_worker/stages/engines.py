"""Where a stage's engine boots happen and are recorded, and what earlier stages pulled for them."""

import re
import socket
from pathlib import Path
from typing import Any

from draftmill.archive.layout import RECEIPTS
from draftmill.reports import Manifest
from draftmill_service.ledger import WorkerLedger
from draftmill_worker.bench.arms import Place
from draftmill_worker.bench.subject import Directory
from draftmill_worker.receipts.archive import ArchiveWriter
from draftmill_worker.settings import WorkerSettings
from draftmill_worker.stage import StageRequest


def directory(pulled: dict[str, Any]) -> Directory:
    return Directory(
        Path(pulled["folder"]), Manifest.model_validate(pulled["manifest"]), pulled["repo"], pulled["commit"]
    )


def prompts_file(pulled: dict[str, Any]) -> Path | None:
    """None for a set that ships."""
    file = pulled.get("prompts")
    return None if file is None else Path(file)


def place(request: StageRequest) -> Place:
    return Place(
        data_dir=request.data_dir,
        scratch=request.scratch,
        archive=_archive(request.data_dir),
        boot_seconds=request.settings.boot_seconds,
        job=request.job,
        attempt=request.attempt,
        devices=request.devices,
    )


def _archive(data_dir: Path) -> ArchiveWriter:
    """One chain per host; its head goes to the ledger, whose address the supervisor hands in apart from the request."""
    writer = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-") or "worker"
    return ArchiveWriter(data_dir / RECEIPTS, writer[:128], WorkerLedger.connect(WorkerSettings().redis_url))
