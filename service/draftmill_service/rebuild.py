"""The ledger from what lies on the disk: done jobs from their records, heads of chains from the archive of receipts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from draftmill._model import Model
from draftmill.archive.chain import read_chain
from draftmill.archive.layout import CHAINS, RECEIPTS
from draftmill.archive.verify import Finding, verify
from draftmill.jobs import JOB_ID
from draftmill.states import Stage
from draftmill_service.archivist import RECORD
from draftmill_service.ledger import Ledger, WorkerLedger
from draftmill_service.ledger.archiving import Record
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
    known: int
    """Jobs that the ledger had, or had removed."""
    unfinished: tuple[Unfinished, ...]
    unreadable: tuple[str, ...]
    """Jobs whose record is damaged."""
    chains: tuple[str, ...]
    """Writers of receipts whose heads were put back as the archive has them."""
    findings: tuple[Finding, ...]
    """What is wrong with the archive of receipts; chains with faults get no head."""

    def lines(self) -> list[str]:
        return [
            f"{self.restored} jobs restored, {self.known} were known",
            *(f"unfinished {one.job}: attempt {one.attempts}, {one.stage or 'no stage'}" for one in self.unfinished),
            *(f"unreadable {job}" for job in self.unreadable),
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
    restored = known = 0
    unfinished: list[Unfinished] = []
    unreadable: list[str] = []
    for folder in _folders(data_dir):
        attempts = _attempts(folder)
        try:
            record = _read(folder)
            newer = record is None or max(attempts, default=0) > int(record.fields["attempt"])
            if record is not None and not newer:
                if await ledger.restore(record):
                    restored += 1
                else:
                    known += 1
                continue
        except (KeyError, ValueError, OSError):
            unreadable.append(folder.name)
            continue
        if await ledger.get(folder.name) is None and attempts:
            unfinished.append(_unfinished(folder, attempts))
    receipts = data_dir / RECEIPTS
    return Rebuilt(
        restored=restored,
        known=known,
        unfinished=tuple(unfinished),
        unreadable=tuple(unreadable),
        chains=tuple(_put_heads(receipts, worker)),
        findings=verify(receipts).findings,
    )


def _folders(data_dir: Path) -> Iterator[Path]:
    """Of jobs, in the order of their submission."""
    jobs = data_dir / "jobs"
    if jobs.is_dir():
        yield from sorted(path for path in jobs.iterdir() if JOB_ID.fullmatch(path.name) and path.is_dir())


def _attempts(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal() and path.is_dir())


def _read(folder: Path) -> Record | None:
    """ValueError for what is no record of this folder's job."""
    try:
        record = Record.model_validate_json((folder / RECORD).read_bytes())
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
