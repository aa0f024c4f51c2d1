"""The archivist: what the ledger knows of a done job goes to `jobs/<id>/record.json`, of a done batch to
`batches/<id>/record.json`, and back into an empty ledger.

Any number may run at once: each writes the same file whole.
"""

import asyncio
import logging
import os
import tempfile
from pathlib import Path

from draftmill_service.ledger import Ledger, LedgerUnavailable
from draftmill_service.ledger.archiving import BatchRecord, Record

logger = logging.getLogger(__name__)

RECORD = "record.json"
BATCH = 100


def record_path(data_dir: Path, job_id: str) -> Path:
    return data_dir / "jobs" / job_id / RECORD


def batch_record_path(data_dir: Path, batch_id: str) -> Path:
    return data_dir / "batches" / batch_id / RECORD


class Archivist:
    def __init__(self, ledger: Ledger, data_dir: Path, *, every: float) -> None:
        self._ledger = ledger
        self._data_dir = data_dir
        self._every = every

    async def run(self) -> None:
        """Until canceled. Waits for a ledger that is away and for a disk that is full."""
        failing: str | None = None
        while True:
            try:
                while await self.work() >= BATCH:
                    pass
                failing = None
            except LedgerUnavailable as error:
                failing = _tell(error, failing)
            except OSError as error:
                failing = _tell(error, failing)
            await asyncio.sleep(self._every)

    async def work(self) -> int:
        """Archive what ended, at most BATCH jobs and as many batches; how many were due. Raises LedgerUnavailable and
        OSError."""
        jobs = await self._ledger.due_for_archive(BATCH)
        for one in jobs:
            record = await self._ledger.record(one.id)
            if record is not None:
                await asyncio.to_thread(_write, record_path(self._data_dir, one.id), record)
            await self._ledger.archived(one)
        batches = await self._ledger.batches_due_for_archive(BATCH)
        for one in batches:
            batch = await self._ledger.batch_record(one.id)
            if batch is not None:
                await asyncio.to_thread(_write, batch_record_path(self._data_dir, one.id), batch)
            await self._ledger.batch_archived(one)
        return len(jobs) + len(batches)


def _tell(error: Exception, before: str | None) -> str:
    """Once per trouble, not once per try."""
    said = f"{type(error).__name__}: {error}"
    if said != before:
        logger.warning("jobs or batches wait to be archived: %s", said)
    return said


def _write(path: Path, record: Record | BatchRecord) -> None:
    """Whole or not at all, and on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{RECORD}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(record.model_dump_json(by_alias=True).encode())
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o640)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
