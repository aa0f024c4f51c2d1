"""The ledger from what lies on the disk: done jobs and batches from their records, heads of chains from receipts."""

import asyncio
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from draftmill._model import Model
from draftmill.archive.chain import read_chain
from draftmill.archive.layout import CHAINS, RECEIPTS
from draftmill.archive.verify import Finding, verify
from draftmill.batches import BATCH_ID
from draftmill.jobs import JOB_ID
from draftmill.states import Stage
from draftmill_service.archivist import RECORD
from draftmill_service.ledger import Ledger, WorkerLedger
from draftmill_service.ledger.archiving import BatchRecord, Record
from draftmill_service.settings import ServiceSettings


class Unfinished(Model):
    """A job that was at work, or was to be tried again, when its ledger was lost. Submit it anew."""

    job: str
    attempts: int
    """Folders of attempts."""
    stage: str | None
    """The last that began."""


class Rebuilt(Model):
    restored: int
    batches: int
    """Restored batches."""
    known: int
    """Jobs that the ledger had, or had removed."""
    unfinished: tuple[Unfinished, ...]
    unreadable: tuple[str, ...]
    """Jobs and batches whose record is damaged."""
    chains: tuple[str, ...]
    """Writers of receipts whose heads were put back as the archive has them."""
    findings: tuple[Finding, ...]
    """What is wrong with the archive of receipts; chains with faults get no head."""

    def lines(self) -> list[str]:
        return [
            f"{self.restored} jobs and {self.batches} batches restored, {self.known} jobs were known",
            *(f"unfinished {one.job}: attempt {one.attempts}, {one.stage or 'no stage'}" for one in self.unfinished),
            *(f"unreadable {name}" for name in self.unreadable),
            f"{len(self.chains)} heads of chains put back as the archive has them",
            *(f"receipts {one.where}: {one.message}" for one in self.findings),
        ]


def rebuilt(settings: ServiceSettings) -> Rebuilt:
    """`rebuild` for a command. Raises LedgerUnavailable."""

    async def run() -> Rebuilt:
        ledger, worker = Ledger.connect(settings.redis_url), WorkerLedger.connect(settings.redis_url)
        try:
            return await rebuild(ledger, worker, settings.data_dir)
        finally:
            worker.close()
            await ledger.close()

    return asyncio.run(run())


async def rebuild(ledger: Ledger, worker: WorkerLedger, data_dir: Path) -> Rebuilt:
    """Fill in what the ledger lacks; what it has stays. Raises LedgerUnavailable; to be repeated after that."""
    batches, damaged = _batches(data_dir)
    found = await _jobs(ledger, data_dir, await _known(ledger, batches))
    # After their items, by whose states they are counted.
    restored = sum([await ledger.restore_batch(record) for record in batches])
    receipts = data_dir / RECEIPTS
    return Rebuilt(
        restored=found.restored,
        batches=restored,
        known=found.known,
        unfinished=tuple(found.unfinished),
        unreadable=(*found.unreadable, *damaged),
        chains=tuple(_put_heads(receipts, worker)),
        findings=verify(receipts).findings,
    )


@dataclass
class _Jobs:
    restored: int = 0
    known: int = 0
    unfinished: list[Unfinished] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


async def _jobs(ledger: Ledger, data_dir: Path, batches: Collection[str]) -> _Jobs:
    done = _Jobs()
    for folder in _folders(data_dir / "jobs", JOB_ID):
        attempts = _attempts(folder)
        try:
            record = _read(folder, Record)
            newer = record is None or max(attempts, default=0) > int(record.fields["attempt"])
            if record is not None and not newer:
                if await ledger.restore(record, batches):
                    done.restored += 1
                else:
                    done.known += 1
                continue
        except (KeyError, ValueError, OSError):
            done.unreadable.append(folder.name)
            continue
        if await ledger.get(folder.name) is None and attempts:
            done.unfinished.append(_unfinished(folder, attempts))
    return done


def _batches(data_dir: Path) -> tuple[list[BatchRecord], list[str]]:
    """Whole records, and names of those that are damaged."""
    records: list[BatchRecord] = []
    damaged: list[str] = []
    for folder in _folders(data_dir / "batches", BATCH_ID):
        try:
            record = _read(folder, BatchRecord)
            if record is not None:
                record.batch()
                records.append(record)
        except (KeyError, ValueError, OSError):
            damaged.append(folder.name)
    return records, damaged


async def _known(ledger: Ledger, batches: Collection[BatchRecord]) -> set[str]:
    """Batches that there will be: those of the records, but for one that retention removed."""
    return {record.id for record in batches if not await ledger.removed(record.id)}


def _folders(tree: Path, name: re.Pattern[str]) -> Iterator[Path]:
    """In the order of their submission."""
    if tree.is_dir():
        yield from sorted(path for path in tree.iterdir() if name.fullmatch(path.name) and path.is_dir())


def _attempts(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal() and path.is_dir())


R = TypeVar("R", Record, BatchRecord)


def _read(folder: Path, kind: type[R]) -> R | None:
    """ValueError for what is no record of this folder's job or batch."""
    try:
        record = kind.model_validate_json((folder / RECORD).read_bytes())
    except FileNotFoundError:
        return None
    if record.id != folder.name:
        raise ValueError(f"the record is of {record.id}")
    return record


def _unfinished(folder: Path, attempts: list[int]) -> Unfinished:
    begun = {path.name for path in (folder / str(attempts[-1])).iterdir()}
    last = next((stage for stage in reversed(Stage) if stage in begun), None)
    return Unfinished(job=folder.name, attempts=len(attempts), stage=last)


def _put_heads(receipts: Path, worker: WorkerLedger) -> Iterator[str]:
    for path in sorted((receipts / CHAINS).glob("*.jsonl")):
        chain = read_chain(path)
        head = chain.head()
        if head is None or chain.faults:
            continue
        if worker.commit_chain_head(head.writer, head.sequence, head.sha256):
            yield head.writer
