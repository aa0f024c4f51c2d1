"""Done jobs and batches out of Redis and back, as they are there: hashes, events, the lists of items."""

import json
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, StringConstraints

from draftmill._model import Model
from draftmill.batches import BATCH_ID, Batch
from draftmill.jobs import JOB_ID, Job, JobSpec
from draftmill.states import DONE
from draftmill_service.ledger import batches, records
from draftmill_service.ledger.access import Access

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME = 10
_NUMBER = 4
_OF_BATCHES = frozenset({"batch", "turn"})
_UNKNOWN_ELSEWHERE = frozenset({"nonce"})
"""Fields that mean something beside other keys only."""
_NOTHING_LEFT = frozenset({"sweep", "retry_at"})
"""Marks of what was left to do for a batch; nothing is, once it is done."""

JobId = Annotated[str, StringConstraints(pattern=JOB_ID.pattern)]


class RawEvent(NamedTuple):
    id: Annotated[str, StringConstraints(pattern=r"^\d{1,20}-\d{1,20}$")]
    kind: str
    data: str


class Record(Model):
    """A done job as the ledger holds it."""

    schema_: Literal["draftmill.job-record/v1"] = Field(default="draftmill.job-record/v1", alias="schema")
    id: JobId
    fields: dict[str, str]
    events: tuple[RawEvent, ...]

    def job(self) -> Job:
        """Whatever is wrong with the fields is raised as a KeyError or a ValueError."""
        return records.job(self.id, self.fields)


class BatchRecord(Model):
    """A done batch as the ledger holds it."""

    schema_: Literal["draftmill.batch-record/v1"] = Field(default="draftmill.batch-record/v1", alias="schema")
    id: Annotated[str, StringConstraints(pattern=BATCH_ID.pattern)]
    fields: dict[str, str]
    items: tuple[JobId, ...]
    """Its jobs, by number."""

    def batch(self) -> Batch:
        """KeyError or ValueError for what is no record of a done batch."""
        batch = batches.read_batch(self.id, self.fields)
        if not batch.done or not len(self.items) == batch.total == batch.made == batch.spec.size:
            raise ValueError(f"the record of {self.id} says {batch.state} and has {len(self.items)} items")
        return batch


class Due(NamedTuple):
    id: str
    mark: str
    """Of the ending that is to be archived."""


def labels(spec: JobSpec) -> list[str]:
    """Terms of the index of labels."""
    return [term for key, value in spec.labels.items() for term in (key, f"{key}={value}")]


def _number(digits: str) -> int:
    value = 0
    for digit in digits:
        value = value * 32 + _DIGITS.index(digit)
    return value


def _made(identity: str) -> tuple[int, int]:
    """Time and number of an id."""
    made = identity[1:]
    return _number(made[:_TIME]), _number(made[_TIME : _TIME + _NUMBER])


def _flat(fields: dict[str, str]) -> str:
    return json.dumps(list(chain.from_iterable(fields.items())))


class Archiving(Access):
    async def due_for_archive(self, limit: int = 100) -> Sequence[Due]:
        """Jobs that ended and were not archived since, first those that ended first."""
        return await self._due(self._keys.unarchived, limit)

    async def batches_due_for_archive(self, limit: int = 100) -> Sequence[Due]:
        return await self._due(self._keys.unarchived_batches, limit)

    async def _due(self, key: str, limit: int) -> Sequence[Due]:
        found = await self._ask(self._redis.zrange(key, 0, limit - 1, withscores=True))
        return [Due(name, f"{score:.0f}") for name, score in found]

    async def record(self, job_id: str) -> Record | None:
        """None for a job that is not done, or is not there any more."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.hgetall(self._keys.job(job_id))
        pipe.xrange(self._keys.events(job_id))
        fields, entries = await self._ask(pipe.execute())
        if fields.get("state") not in DONE:
            return None
        events = tuple(RawEvent(entry, event["kind"], event["data"]) for entry, event in entries)
        return Record(id=job_id, fields=fields, events=events)

    async def batch_record(self, batch_id: str) -> BatchRecord | None:
        """None for a batch that is not done, or is not there any more."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.hgetall(self._keys.batch(batch_id))
        pipe.lrange(self._keys.items(batch_id), 0, -1)
        fields, items = await self._ask(pipe.execute())
        return BatchRecord(id=batch_id, fields=fields, items=tuple(items)) if fields.get("state") in DONE else None

    async def archived(self, due: Due) -> None:
        await self._run("archived", "unarchived", *due)

    async def batch_archived(self, due: Due) -> None:
        await self._run("archived", "unarchived:batches", *due)

    async def restore(self, record: Record, known: Collection[str] = ()) -> bool:
        """Put a job back; False when the ledger knows it. ValueError or KeyError for what is no record of a done job.

        It belongs to its batch if that is `known`: there, or to be put back after its items. Else to none.
        Idempotency-Keys are forgotten.
        """
        job = record.job()
        if not job.done:
            raise ValueError(f"the record of {record.id} says {job.state}")
        left = _UNKNOWN_ELSEWHERE if job.batch in known else _UNKNOWN_ELSEWHERE | _OF_BATCHES
        fields = {name: value for name, value in record.fields.items() if name not in left}
        done = await self._run(
            "restore", record.id, *_made(record.id), _flat(fields), json.dumps(record.events), *labels(job.spec)
        )
        return bool(done)

    async def restore_batch(self, record: BatchRecord) -> bool:
        """Put a batch back after its jobs, whose states it is counted by; False when the ledger knows it.

        An item whose job is not there, or goes on, counts as failed. ValueError or KeyError for what is no record of a
        done batch.
        """
        batch = record.batch()
        fields = {
            name: value
            for name, value in record.fields.items()
            if name not in _NOTHING_LEFT and not name.startswith("c:")
        }
        terms = batches.label_terms(batch.labels)
        done = await self._run(
            "batch_restore", record.id, *_made(record.id), _flat(fields), json.dumps(record.items), *terms
        )
        return bool(done)
