"""From what Redis holds to the wire models.

A job's hash: state, owner, spec, format, created, attempt, fence, lost, nonce, deadline, resolved, family, cached,
summary, reason, problem, `t:<state>` and, for attempt n, `a:<n>:worker|started|ended|outcome` and
`a:<n>:<stage>:state|started|ended|progress|waiting|devices`. Times are milliseconds since 1970 by Redis' clock;
documents are JSON.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from draftmill.jobs import Attempt, DeviceWait, Job, JobSpec, Progress, ResolvedSpec, StageRecord, Summary
from draftmill.problems import Problem
from draftmill.receipts import ChainHead, ChainHeads
from draftmill.reports import Event, EventKind
from draftmill.states import JobState, Reason, Stage, StageState


def instant(milliseconds: str | int) -> datetime:
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC)


def milliseconds(value: datetime) -> int:
    return round(value.timestamp() * 1000)


def pairs(flat: list[str]) -> dict[str, str]:
    """HGETALL as a script returns it."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _maybe_instant(value: str | None) -> datetime | None:
    return None if value is None else instant(value)


def _stages(record: Mapping[str, str], attempt: int) -> tuple[StageRecord, ...]:
    stages = []
    for stage in Stage:
        at = f"a:{attempt}:{stage}:"
        progress, waiting = record.get(at + "progress"), record.get(at + "waiting")
        if (state := record.get(at + "state")) is not None:
            stages.append(
                StageRecord(
                    name=stage,
                    state=StageState(state),
                    progress=None if progress is None else Progress.model_validate_json(progress),
                    waiting=None if waiting is None else DeviceWait.model_validate_json(waiting),
                    devices=tuple(json.loads(record.get(at + "devices", "[]"))),
                    started_at=_maybe_instant(record.get(at + "started")),
                    ended_at=_maybe_instant(record.get(at + "ended")),
                )
            )
    return tuple(stages)


def _attempts(record: Mapping[str, str]) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            number=number,
            worker=record[f"a:{number}:worker"],
            started_at=instant(record[f"a:{number}:started"]),
            ended_at=_maybe_instant(record.get(f"a:{number}:ended")),
            outcome=cast("Any", record.get(f"a:{number}:outcome")),
            stages=_stages(record, number),
        )
        for number in range(1, int(record["attempt"]) + 1)
    )


def job(job_id: str, record: Mapping[str, str], rank: int | None = None) -> Job:
    """`rank` is the number of jobs before it in line."""
    resolved, summary, problem = record.get("resolved"), record.get("summary"), record.get("problem")
    reason = record.get("reason")
    return Job(
        id=job_id,
        state=JobState(record["state"]),
        reason=None if reason is None else Reason(reason),
        problem=None if problem is None else Problem.model_validate_json(problem),
        spec=JobSpec.model_validate_json(record["spec"]),
        resolved_spec=None if resolved is None else ResolvedSpec.model_validate_json(resolved),
        cached=record.get("cached") == "1",
        summary=None if summary is None else Summary.model_validate_json(summary),
        attempts=_attempts(record),
        batch=record.get("batch"),
        queue_position=None if rank is None or record["state"] != JobState.QUEUED else rank + 1,
        created_at=instant(record["created"]),
        timestamps={state: instant(at) for state in JobState if (at := record.get(f"t:{state}")) is not None},
    )


def chain_heads(record: Mapping[str, str]) -> ChainHeads:
    """From the hash of heads, sorted by writer."""
    heads = ((writer, *head.split(":")) for writer, head in sorted(record.items()))
    return ChainHeads(
        items=tuple(
            ChainHead(writer=writer, sequence=int(sequence), sha256=sha256) for writer, sequence, sha256 in heads
        )
    )


def event(job_id: str, entry_id: str, fields: Mapping[str, str]) -> Event:
    return Event(
        id=entry_id,
        job=job_id,
        time=instant(entry_id.partition("-")[0]),
        kind=EventKind(fields["kind"]),
        data=json.loads(fields["data"]),
    )
