"""One run: look, decide, remove. One at a time in a data directory, beside any number of running jobs."""

import fcntl
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from draftmill._model import Model
from draftmill.errors import DraftmillError
from draftmill.jobs import Attempt, Job
from draftmill.problems import ProblemError
from draftmill.states import Stage
from draftmill_service.archivist import RECORD
from draftmill_service.ledger import Ledger
from draftmill_service.ledger.archiving import BatchRecord
from draftmill_service.retention.layout import Item, Kind, batches, inventory
from draftmill_service.retention.pins import Pins
from draftmill_service.retention.policy import InUse, Limits, Removal, decide
from draftmill_service.retention.removing import Remover
from draftmill_service.retention.tombstones import receipts_by_name
from draftmill_service.store import StageResult

CLOCK_SECONDS = 60.0
"""Redis' clock and the file system's may differ by this much."""


class BusyError(DraftmillError):
    """Another run is at work in the data directory."""


class Line(Model):
    kind: Kind
    name: str
    bytes: int
    why: str


class Report(Model):
    dry_run: bool
    removed: tuple[Line, ...]
    """Of a dry run: what would be."""
    kept: tuple[Line, ...] = ()
    """What was to go and was used meanwhile; `why` says how."""

    @property
    def bytes(self) -> int:
        return sum(line.bytes for line in self.removed)


def _line(removal: Removal, why: str | None = None) -> Line:
    item = removal.item
    return Line(kind=item.kind, name=item.name, bytes=item.bytes, why=why or removal.why)


class Collector:
    def __init__(self, data: Path, ledger: Ledger, limits: Limits) -> None:
        self._data = data
        self._ledger = ledger
        self._limits = limits

    async def dry_run(self) -> Report:
        removals = await self._decide(datetime.now(UTC))
        return Report(dry_run=True, removed=tuple(_line(removal) for removal in removals))

    async def run(self) -> Report:
        """Raises BusyError."""
        now = datetime.now(UTC)
        with self._alone():
            removals = await self._decide(now)
            named = receipts_by_name(self._data) if removals else {}
            remover = Remover(self._data, named, now)
            remover.finish()
            ends = [(removal, await self._wanted(removal.item) or remover.remove(removal)) for removal in removals]
            remover.empty_trash()
        removed = tuple(_line(removal) for removal, kept in ends if kept is None)
        return Report(
            dry_run=False, removed=removed, kept=tuple(_line(removal, why) for removal, why in ends if why is not None)
        )

    async def _decide(self, now: datetime) -> list[Removal]:
        # Before the ledger is asked: what an attempt that begins in between uses has another mark by then.
        items = inventory(self._data)
        pins = Pins(self._data).names()
        ended: dict[str, int] = {}
        if self._limits.jobs_days is not None:
            ended = await self._ended(items) | await self._old_batches(pins)
        return decide(items, self._limits, in_use=await self._in_use(), pins=pins, ended=ended, now=now)

    async def _in_use(self) -> InUse:
        names: set[str] = set()
        since: list[int] = []
        for job_id in await self._ledger.leases():
            job = await self._ledger.get(job_id)
            if job is None or not job.attempts:
                continue
            named = _needs(self._data, job)
            names |= named or set()
            names.add(f"jobs/{job.id}/{job.attempts[-1].number}/scratch")
            if named is None:
                since.append(round((job.attempts[-1].started_at.timestamp() - CLOCK_SECONDS) * 10**9))
        return InUse(frozenset(names), min(since, default=None))

    async def _ended(self, items: list[Item]) -> dict[str, int]:
        """Jobs that are done and archived: a ledger can be rebuilt without their attempts."""
        attempts = {item.job for item in items if item.kind is Kind.ATTEMPT and item.job is not None}
        archived = (name for name in sorted(attempts) if (self._data / name / RECORD).is_file())
        ended = {}
        for name in archived:
            job = await self._ledger.get(name.removeprefix("jobs/"))
            if job is not None and job.done:
                ended[name] = round(job.timestamps[job.state].timestamp() * 10**9)
        return ended

    async def _old_batches(self, pins: Collection[str]) -> dict[str, int]:
        """Batches that are done and archived, and of which no item is pinned."""
        ended = {}
        for folder in batches(self._data):
            name = f"batches/{folder.name}"
            try:
                record = BatchRecord.model_validate_json((folder / RECORD).read_bytes())
                batch = await self._ledger.get_batch(folder.name)
            except (FileNotFoundError, ValidationError):
                continue
            except ProblemError as error:
                # A run that was cut short had the ledger forget it.
                if error.problem.slug == "expired":
                    ended[name] = 0
                continue
            if batch.done and not {f"jobs/{job}" for job in record.items} & {*pins}:
                ended[name] = round(batch.timestamps[batch.state].timestamp() * 10**9)
        return ended

    async def _wanted(self, item: Item) -> str | None:
        """Why it stays after all, by the ledger; a batch that does not is forgotten there first."""
        if item.kind is Kind.ATTEMPT and item.job is not None:
            job = await self._ledger.get(item.job.removeprefix("jobs/"))
            return None if job is not None and job.done else "its job was asked for again"
        if item.kind is Kind.BATCH:
            forgotten = await self._ledger.remove_batch(item.name.removeprefix("batches/"))
            return None if forgotten else "an item of it was asked for again"
        return None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._data.mkdir(parents=True, exist_ok=True)
        with (self._data / "gc.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(f"another gc is at work in {self._data}") from None
            yield


def _needs(data: Path, job: Job) -> set[str] | None:
    """Names of what a running job's attempt uses; None when it has not told all of it yet."""
    attempt = job.attempts[-1]
    pulled = _pulled(data, job.id, attempt)
    planned = any(record.name not in (Stage.PULL, Stage.PLAN) for record in attempt.stages)
    if pulled is None or not planned or job.resolved_spec is None:
        return None
    names = {path.relative_to(data).as_posix() for path in _paths(pulled) if path.is_relative_to(data / "sources")}
    return {*names, f"variants/{job.resolved_spec.variant}"}


def _paths(value: Any) -> Iterator[Path]:
    """Every absolute path in a stage's result: the drafter, the target, and whatever a later kind of job pulls."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _paths(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner)
    elif isinstance(value, str) and value.startswith("/"):
        yield Path(value)


def _pulled(data: Path, job_id: str, attempt: Attempt) -> dict[str, Any] | None:
    path = data / "jobs" / job_id / str(attempt.number) / Stage.PULL / "result.json"
    try:
        return StageResult.model_validate_json(path.read_bytes()).value
    except (FileNotFoundError, ValidationError):
        return None
