"""Done jobs out of Redis and back, as they are there: the hash and the events."""

import json
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, StringConstraints

from draftmill._model import Model
from draftmill.jobs import JOB_ID, Job, JobSpec
from draftmill.states import DONE
from draftmill_service.ledger import records
from draftmill_service.ledger.access import Access

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME = 10
_NUMBER = 4
_UNKNOWN_ELSEWHERE = frozenset({"batch", "nonce"})
"""Fields that mean something beside other keys only: a batch that is gone would hold its items for ever."""


class RawEvent(NamedTuple):
    id: Annotated[str, StringConstraints(pattern=r"^\d{1,20}-\d{1,20}$")]
    kind: str
    data: str


class Record(Model):
    """A done job as the ledger holds it."""

    schema_: Literal["draftmill.job-record/v1"] = Field(default="draftmill.job-record/v1", alias="schema")
    id: Annotated[str, StringConstraints(pattern=JOB_ID.pattern)]
    fields: dict[str, str]
    events: tuple[RawEvent, ...]

    def job(self) -> Job:
        """Whatever is wrong with the fields is raised as a KeyError or a ValueError."""
        return records.job(self.id, self.fields)


class Due(NamedTuple):
    job: str
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


class Archiving(Access):
    async def due_for_archive(self, limit: int = 100) -> Sequence[Due]:
        """Jobs that ended and were not archived since, first those that ended first."""
        found = await self._ask(self._redis.zrange(self._keys.unarchived, 0, limit - 1, withscores=True))
        return [Due(job, f"{score:.0f}") for job, score in found]

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

    async def archived(self, due: Due) -> None:
        await self._run("archived", due.job, due.mark)

    async def restore(self, record: Record) -> bool:
        """Put a job back; False when the ledger knows it. ValueError or KeyError for what is no record of a done job.

        It belongs to no batch any more, and Idempotency-Keys are forgotten.
        """
        job = record.job()
        if not job.done:
            raise ValueError(f"the record of {record.id} says {job.state}")
        fields = [
            part for name, value in record.fields.items() if name not in _UNKNOWN_ELSEWHERE for part in (name, value)
        ]
        made = record.id[1:]
        done = await self._run(
            "restore",
            record.id,
            _number(made[:_TIME]),
            _number(made[_TIME : _TIME + _NUMBER]),
            json.dumps(fields),
            json.dumps(record.events),
            *labels(job.spec),
        )
        return bool(done)
