"""Batches in the ledger: a record with counts, and items that are jobs.

What a batch needs beyond one script (making its items, canceling or trying them again) is done in steps that anybody
may take and nobody takes twice: the request that asked takes them at once, the reaper those of a request that died.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from draftmill.batches import (
    BATCH_ID,
    CHECKED,
    Batch,
    BatchItem,
    BatchItemPage,
    BatchPage,
    BatchReason,
    BatchReport,
    BatchSpec,
    BatchSummary,
    Position,
    mark_front,
    report_row,
)
from draftmill.digests import digest
from draftmill.formats import Format
from draftmill.jobs import Summary
from draftmill.problems import Offender, Problem, ProblemError
from draftmill.states import JobState, Reason
from draftmill_service.ledger import cursors, records
from draftmill_service.ledger.access import Access
from draftmill_service.ledger.keys import PLACE

STEP = 100
"""Items that one script makes or moves."""
IDEMPOTENCY_SECONDS = 24 * 3600
_NONCE_SECONDS = 60
_SCAN = 2000
_READ = 256
_SUMMARY = (
    *("state", "stopped", "labels", "total", "made", "sources", "formats", "options", "created"),
    *(f"t:{state}" for state in JobState),
    *(f"c:{state}" for state in JobState),
)
_ITEM = ("state", "reason", "problem", "cached")
_ROW = (*_ITEM, "resolved", "summary")


@dataclass(frozen=True)
class BatchFilters:
    """Which batches to list. Labels are `key` or `key=value`; all must hold."""

    state: JobState | None = None
    labels: tuple[str, ...] = ()

    def terms(self) -> list[tuple[str, str]]:
        state = [] if self.state is None else [("batch-state", str(self.state))]
        return state + [("batch-label", label) for label in sorted(set(self.labels))]


@dataclass(frozen=True)
class ItemFilters:
    state: JobState | None = None
    format: Format | None = None
    source: int | None = None
    """Position in the spec's list."""

    def terms(self) -> list[object]:
        return [self.state, self.format, self.source]

    def fits(self, spec: BatchSpec, position: Position) -> bool:
        """As far as the matrix says."""
        return self.source in (None, position.source) and self.format in (None, spec.formats[position.format])


class _Cell(NamedTuple):
    number: int
    job: str | None
    fields: Mapping[str, str]
    """Those asked for that are there."""


def label_terms(labels: Mapping[str, str]) -> list[str]:
    """Terms of the index of labels."""
    return [term for key, value in labels.items() for term in (key, f"{key}={value}")]


def _summary(batch_id: str, record: Mapping[str, str]) -> dict[str, Any]:
    stopped = record.get("stopped")
    counts = {state: int(record.get(f"c:{state}", 0)) for state in JobState}
    counts[JobState.QUEUED] += int(record["total"]) - int(record["made"])
    return {
        "id": batch_id,
        "state": JobState(record["state"]),
        "reason": None if stopped is None else BatchReason(stopped),
        "labels": json.loads(record["labels"]),
        **{name: int(record[name]) for name in ("total", "made", "sources", "formats", "options")},
        "counts": counts,
        "created_at": records.instant(record["created"]),
        "timestamps": {state: records.instant(at) for state in JobState if (at := record.get(f"t:{state}"))},
    }


def read_batch(batch_id: str, record: Mapping[str, str]) -> Batch:
    """From a batch's hash. KeyError or ValueError for what is none."""
    spec = BatchSpec.model_validate_json(record["spec"], context=CHECKED)
    return Batch(spec=spec, **_summary(batch_id, record))


def _item(spec: BatchSpec, cell: _Cell) -> BatchItem:
    position, fields = spec.position(cell.number), cell.fields
    state = JobState.QUEUED if cell.job is None else fields.get("state")
    problem = Problem.model_validate_json(fields["problem"]) if "problem" in fields else None
    return BatchItem(
        index=cell.number,
        position=position,
        source=spec.sources[position.source],
        format=spec.formats[position.format],
        options=spec.options[position.options].name or str(position.options),
        job=cell.job,
        state=None if state is None else JobState(state),
        reason=Reason(fields["reason"]) if "reason" in fields else None,
        problem=None if problem is None else problem.slug,
        detail=None if problem is None else problem.detail,
        cached=fields.get("cached") == "1",
    )


def _report(batch: Batch, cells: Sequence[_Cell]) -> BatchReport:
    rows = []
    for cell in cells:
        fields = cell.fields
        resolved = json.loads(fields.get("resolved", "{}"))
        summary = Summary.model_validate_json(fields["summary"]) if "summary" in fields else None
        rows.append(report_row(_item(batch.spec, cell), resolved, summary))
    known = {name: getattr(batch, name) for name in BatchSummary.model_fields}
    return BatchReport(batch=BatchSummary(**known), rows=mark_front(tuple(rows)))


class Batches(Access):
    async def submit_batch(
        self, spec: BatchSpec, *, owner: str, cap: int, idempotency_key: str | None = None, bell: str = ""
    ) -> tuple[str, bool]:
        """Record a batch; its items are made by `work_on`. The id, and whether this call made it: a key that was used
        before with the same spec gives the batch it made then.

        `cap` is how many items may be with workers at once, `bell` the message that rings for one. ProblemError as
        `Ledger.submit` raises.
        """
        random, by_key = secrets.token_hex(6), idempotency_key is not None
        answer = await self._run(
            "batch_submit",
            digest([owner, "batch", idempotency_key]) if by_key else f"once:{random}",
            (IDEMPOTENCY_SECONDS if by_key else _NONCE_SECONDS) * 1000,
            digest(spec) if by_key else "",
            owner,
            spec.model_dump_json(),
            spec.size,
            cap,
            "" if spec.max_failures is None else spec.max_failures,
            "" if spec.deadline is None else records.milliseconds(spec.deadline),
            random,
            bell,
            json.dumps(spec.labels),
            *(len(axis) for axis in (spec.sources, spec.formats, spec.options)),
            *label_terms(spec.labels),
        )
        if answer[0] == "mismatch":
            raise ProblemError("idempotency-mismatch", "the Idempotency-Key belongs to a batch with another spec")
        if answer[0] == "past":
            value = spec.model_dump(mode="json")["deadline"]
            offender = Offender(where="$.deadline", message="has passed", value=value)
            raise ProblemError("invalid-request", "the deadline has passed", [offender])
        return str(answer[1]), answer[0] == "created" or not by_key

    async def work_on(self, batch_id: str) -> None:
        """Do what is left to do for a batch, step by step."""
        spec: BatchSpec | None = None
        while (step := await self._run("batch_step", batch_id, STEP))[0] != "done":
            if step[0] == "expand":
                spec = spec or (await self.get_batch(batch_id)).spec
                await self._expand(batch_id, spec, int(step[1]))

    async def _expand(self, batch_id: str, spec: BatchSpec, first: int) -> None:
        labels = label_terms(spec.labels)
        items: list[Any] = []
        for index in range(first, min(first + STEP, spec.size)):
            job = spec.job_spec(spec.position(index))
            items += [secrets.token_hex(6), job.model_dump_json(), job.format, spec.turn(index)]
        await self._run("batch_expand", batch_id, first, len(labels), *labels, *items)

    async def batches_todo(self, seconds: float, limit: int = 100) -> Sequence[str]:
        """Batches with something left to do, which nobody has worked on for so long."""
        ids: Sequence[str] = await self._run("batches_todo", round(seconds * 1000), limit)
        return ids

    async def get_batch(self, batch_id: str) -> Batch:
        """Raises ProblemError("not-found") or ("expired")."""
        record: dict[str, str] = {}
        removed = 0
        if BATCH_ID.fullmatch(batch_id):
            pipe = self._redis.pipeline(transaction=False)
            pipe.hgetall(self._keys.batch(batch_id))
            pipe.exists(self._keys.tombstone(batch_id))
            record, removed = await self._ask(pipe.execute())
        if record:
            return read_batch(batch_id, record)
        if removed:
            raise ProblemError("expired", f"batch {batch_id} was removed by retention; its jobs may still be there")
        raise ProblemError("not-found", "there is no batch of this id")

    async def remove_batch(self, batch_id: str) -> bool:
        """Retention: forget a batch whose items are all done, for good, and remember that there was one; its items stay
        as jobs of their own. False where an item is not done. No fault for a batch that was removed before.

        ProblemError("not-found").
        """
        try:
            terms = label_terms((await self.get_batch(batch_id)).labels)
        except ProblemError as error:
            if error.problem.slug == "expired":
                return True
            raise
        return bool(await self._run("batch_remove", batch_id, *terms))

    async def list_batches(self, filters: BatchFilters, *, cursor: str | None = None, limit: int = 50) -> BatchPage:
        """Newest first. Raises ProblemError("invalid-cursor")."""
        query = ["batches", *filters.terms()]
        behind = "" if cursor is None else cursors.read(query, cursor, BATCH_ID)
        indexes = [self._keys.index(*term) for term in filters.terms()] or [self._keys.batches]
        found: list[str] = []
        while len(found) <= limit:
            ids, behind = await self._run("list", limit + 1 - len(found), behind, _SCAN, "newest", *indexes)
            found += ids
            if not behind:
                break
        records = await self._fields([self._keys.batch(batch_id) for batch_id in found[:limit]], _SUMMARY)
        items = [
            BatchSummary(**_summary(batch_id, record))
            for batch_id, record in zip(found, records, strict=False)
            if record
        ]
        more = cursors.make(query, found[limit - 1]) if len(found) > limit else None
        return BatchPage(items=tuple(items), next_cursor=more)

    async def batch_items(
        self, batch_id: str, filters: ItemFilters, *, cursor: str | None = None, limit: int = 200
    ) -> BatchItemPage:
        """By number. Raises ProblemError: not-found, invalid-cursor."""
        batch = await self.get_batch(batch_id)
        query = ["items", batch_id, *filters.terms()]
        first = 0 if cursor is None else int(cursors.read(query, cursor, PLACE)) + 1
        found: list[BatchItem] = []
        async for cell in self._cells(batch, first, _ITEM):
            if not filters.fits(batch.spec, batch.spec.position(cell.number)):
                continue
            item = _item(batch.spec, cell)
            if filters.state in (None, item.state):
                found.append(item)
            if len(found) > limit:
                break
        more = cursors.make(query, str(found[limit - 1].index)) if len(found) > limit else None
        return BatchItemPage(items=tuple(found[:limit]), next_cursor=more)

    async def batch_report(self, batch_id: str) -> BatchReport:
        """As far as the items have come. Raises ProblemError("not-found")."""
        batch = await self.get_batch(batch_id)
        cells = [cell async for cell in self._cells(batch, 0, _ROW)]
        # Thousands of rows are too much work for the event loop.
        return await asyncio.to_thread(_report, batch, cells)

    async def _cells(self, batch: Batch, first: int, names: Sequence[str]) -> AsyncIterator[_Cell]:
        """The batch's items from `first` on, with these fields of their jobs."""
        for start in range(first, batch.total, _READ):
            end = min(start + _READ, batch.total)
            read = self._redis.lrange(self._keys.items(batch.id), start, end - 1)
            jobs = await self._ask(cast("Awaitable[list[str]]", read))
            fields = await self._fields([self._keys.job(job) for job in jobs], names)
            for offset in range(end - start):
                if offset < len(jobs):
                    yield _Cell(start + offset, jobs[offset], fields[offset])
                else:
                    yield _Cell(start + offset, None, {})

    async def _fields(self, keys: Iterable[str], names: Sequence[str]) -> list[dict[str, str]]:
        pipe = self._redis.pipeline(transaction=False)
        for key in keys:
            pipe.hmget(key, list(names))
        answers = await self._ask(pipe.execute())
        return [
            {name: value for name, value in zip(names, values, strict=True) if value is not None} for values in answers
        ]

    async def cancel_batch(self, batch_id: str) -> Batch:
        """Items that wait are canceled, running ones are told to stop. Canceling twice is no fault.

        ProblemError: not-found; conflict when it ended otherwise.
        """
        await self.get_batch(batch_id)
        before = await self._run("batch_cancel", batch_id)
        if before in {JobState.SUCCEEDED, JobState.FAILED, JobState.EXPIRED}:
            raise ProblemError("conflict", f"the batch is done: {before}")
        await self.work_on(batch_id)
        return await self.get_batch(batch_id)

    async def retry_batch(self, batch_id: str) -> Batch:
        """Queue the items again that failed or were canceled.

        ProblemError: not-found; conflict when there are none, the batch's deadline has passed, or it is being stopped.
        """
        await self.get_batch(batch_id)
        answer = await self._run("batch_retry", batch_id)
        if answer in _NO_RETRY:
            raise ProblemError("conflict", _NO_RETRY[answer])
        await self.work_on(batch_id)
        return await self.get_batch(batch_id)


_NO_RETRY = {
    "busy": "the batch is still being made or stopped",
    "nothing": "no item of the batch failed or was canceled",
    "past": "the batch's deadline has passed; submit it anew with another",
}
