"""Batches in the ledger: made in steps, released by turns, counted by the items' own transitions."""

import asyncio
import json
from collections import Counter

import pytest
import redis

from draftmill.batches import Batch, BatchReason, BatchSpec
from draftmill.formats import Format
from draftmill.problems import ProblemError
from draftmill.states import JobState, Outcome, Reason
from draftmill_service.ledger import Ledger, WorkerLedger
from draftmill_service.ledger.batches import BatchFilters, ItemFilters
from draftmill_service.ledger.keys import BATCHES_QUEUE, JOB_ID_IN_BELL, JOBS_QUEUE

FORMATS = ("fp8", "fp8_pc_pt")


def matrix(sources: int = 3, **more: object) -> BatchSpec:
    axes = {"sources": [{"repo": f"org/d{number}"} for number in range(sources)], "formats": FORMATS}
    return BatchSpec.model_validate_json(json.dumps({**axes, **more}))


async def submit(ledger: Ledger, spec: BatchSpec, cap: int = 2) -> Batch:
    batch_id, _ = await ledger.submit_batch(spec, owner="tests", cap=cap, bell=JOB_ID_IN_BELL)
    await ledger.work_on(batch_id)
    return await ledger.get_batch(batch_id)


async def jobs(ledger: Ledger, batch: Batch) -> list[str]:
    items = (await ledger.batch_items(batch.id, ItemFilters(), limit=1000)).items
    return [item.job for item in items if item.job is not None]


def rung(url: str) -> list[str]:
    """Takes the messages of items, in the order a worker would."""
    with redis.Redis.from_url(url, decode_responses=True) as broker:
        return [str(each) for each in iter(lambda: broker.rpop(BATCHES_QUEUE), None)]


def run_one(worker: WorkerLedger, job_id: str, outcome: Outcome = Outcome.SUCCEEDED) -> None:
    claim = worker.claim(job_id, "w", 60)
    assert claim is not None
    reason = Reason.PLAN_REFUSED if outcome is Outcome.FAILED else None
    assert worker.finish(claim, outcome, reason)


async def test_items_are_jobs_released_by_turns(clean_redis: str, ledger: Ledger, worker: WorkerLedger) -> None:
    batch = await submit(ledger, matrix(labels={"team": "x"}))
    assert (batch.state, batch.total, batch.made) == (JobState.QUEUED, 6, 6)
    made = await jobs(ledger, batch)
    specs = [job.spec for job in [await ledger.get(job_id) for job_id in made] if job]
    assert specs == [batch.spec.job_spec(position) for position in batch.spec.positions()]
    assert {spec.labels["team"] for spec in specs} == {"x"}

    # Two are out: the first two sources in the first format. A stray message of another is nothing.
    assert rung(clean_redis) == [made[0], made[2]]
    assert worker.claim(made[1], "w", 60) is None
    order = [made[0], made[2]]
    for _ in range(4):
        run_one(worker, order[-2])
        order += rung(clean_redis)
    assert order == [made[0], made[2], made[4], made[1], made[3], made[5]]
    assert (await ledger.get_batch(batch.id)).state is JobState.RUNNING
    run_one(worker, order[4])
    run_one(worker, order[5], Outcome.FAILED)
    batch = await ledger.get_batch(batch.id)
    assert (batch.state, batch.reason) == (JobState.FAILED, None)
    assert {state: count for state, count in batch.counts.items() if count} == {
        JobState.SUCCEEDED: 5,
        JobState.FAILED: 1,
    }


async def test_a_single_job_is_not_behind_a_batch(clean_redis: str, ledger: Ledger) -> None:
    await submit(ledger, matrix())
    spec = matrix(1).job_spec(matrix(1).position(0))
    job, _ = await ledger.submit(spec, owner="tests", bell=JOB_ID_IN_BELL)
    with redis.Redis.from_url(clean_redis, decode_responses=True) as broker:
        assert broker.lrange(JOBS_QUEUE, 0, -1) == [job.id]


async def test_a_batch_half_made_is_made_once(clean_redis: str, ledger: Ledger) -> None:
    """The request that made the first steps is gone; two others go on at the same time."""
    spec = matrix(200)
    batch_id, _ = await ledger.submit_batch(spec, owner="tests", cap=2)
    assert (await ledger._run("batch_step", batch_id, 100)) == ["expand", 0]
    await ledger._expand(batch_id, spec, 0)
    half = await ledger.get_batch(batch_id)
    assert (half.made, half.counts[JobState.QUEUED]) == (100, 400)
    page = await ledger.batch_items(batch_id, ItemFilters(state=JobState.QUEUED), limit=1000)
    assert [item.job is None for item in page.items] == [False] * 100 + [True] * 300
    assert await ledger.batches_todo(60) == []
    assert await ledger.batches_todo(0) == [batch_id]

    await asyncio.gather(ledger.work_on(batch_id), ledger.work_on(batch_id), ledger._expand(batch_id, spec, 0))
    assert await ledger.batches_todo(0) == []
    batch = await ledger.get_batch(batch_id)
    assert (batch.made, batch.counts[JobState.QUEUED]) == (400, 400)
    made = await jobs(ledger, batch)
    assert len(set(made)) == 400
    found = [await ledger.get(job_id) for job_id in made]
    assert [job.spec.source for job in found if job] == [spec.sources[n // 2] for n in range(400)]


async def test_the_same_key_gives_the_same_batch(ledger: Ledger) -> None:
    async def submit_with(spec: BatchSpec, owner: str = "tests") -> tuple[str, bool]:
        return await ledger.submit_batch(spec, owner=owner, cap=1, idempotency_key="k")

    first, created = await submit_with(matrix())
    assert created
    assert await submit_with(matrix()) == (first, False)
    assert (await submit_with(matrix(), "other"))[0] != first
    with pytest.raises(ProblemError, match="idempotency-mismatch"):
        await submit_with(matrix(2))


async def test_a_spent_budget_cancels_what_waits(clean_redis: str, ledger: Ledger, worker: WorkerLedger) -> None:
    batch = await submit(ledger, matrix(120, max_failures=1), cap=3)
    first, second, third = rung(clean_redis)
    going_on = worker.claim(third, "w", 60)
    assert going_on is not None
    run_one(worker, first, Outcome.FAILED)
    assert (await ledger.get_batch(batch.id)).state is JobState.RUNNING
    run_one(worker, second, Outcome.FAILED)
    # Nothing more is started, though a message is there already; the reaper finds the rest to cancel.
    assert await ledger.batches_todo(0) == [batch.id]
    await ledger.work_on(batch.id)
    batch = await ledger.get_batch(batch.id)
    assert batch.reason is BatchReason.FAILURE_BUDGET_SPENT
    assert (batch.counts[JobState.CANCELED], batch.counts[JobState.RUNNING]) == (237, 1)
    canceled = (await ledger.batch_items(batch.id, ItemFilters(state=JobState.CANCELED), limit=1000)).items
    assert {item.reason for item in canceled} == {Reason.BATCH_STOPPED}
    # What had begun goes on to its end.
    assert worker.renew(going_on, 60) == "continue"
    worker.finish(going_on, Outcome.SUCCEEDED)
    assert (await ledger.get_batch(batch.id)).state is JobState.FAILED

    again = await ledger.retry_batch(batch.id)
    assert (again.state, again.reason) == (JobState.RUNNING, None)
    assert (again.counts[JobState.QUEUED], again.counts[JobState.SUCCEEDED]) == (239, 1)


async def test_cancel_stops_all_and_retry_takes_up_what_did_not_succeed(
    clean_redis: str, ledger: Ledger, worker: WorkerLedger
) -> None:
    batch = await submit(ledger, matrix(3), cap=3)
    first, second, third = rung(clean_redis)
    run_one(worker, first)
    running = worker.claim(second, "w", 60)
    assert running is not None
    canceling = await ledger.cancel_batch(batch.id)
    assert (canceling.state, canceling.reason) == (JobState.CANCELING, BatchReason.CANCELED_BY_USER)
    assert await ledger.cancel_batch(batch.id) == canceling
    assert worker.claim(third, "w", 60) is None
    with pytest.raises(ProblemError, match="still being"):
        await ledger.retry_batch(batch.id)
    assert worker.renew(running, 60) == "cancel"
    worker.finish(running, Outcome.CANCELED)
    done = await ledger.get_batch(batch.id)
    assert (done.state, done.counts[JobState.CANCELED], done.counts[JobState.SUCCEEDED]) == (JobState.CANCELED, 5, 1)
    rung(clean_redis)

    again = await ledger.retry_batch(batch.id)
    assert (again.state, again.counts[JobState.QUEUED]) == (JobState.RUNNING, 5)
    seen = Counter[str]()
    while (released := rung(clean_redis)) != []:
        for job_id in released:
            run_one(worker, job_id)
            seen[job_id] += 1
    assert set(seen.values()) == {1}
    assert len(seen) == 5
    assert (await ledger.get_batch(batch.id)).state is JobState.SUCCEEDED
    with pytest.raises(ProblemError, match="no item"):
        await ledger.retry_batch(batch.id)
    with pytest.raises(ProblemError, match="succeeded"):
        await ledger.cancel_batch(batch.id)


async def test_one_item_tried_again_opens_its_batch(clean_redis: str, ledger: Ledger, worker: WorkerLedger) -> None:
    batch = await submit(ledger, matrix(1))
    await ledger.cancel_batch(batch.id)
    rung(clean_redis)
    item = (await jobs(ledger, batch))[1]
    await ledger.retry(item)
    opened = await ledger.get_batch(batch.id)
    assert (opened.state, opened.reason, opened.counts[JobState.QUEUED]) == (JobState.RUNNING, None, 1)
    assert rung(clean_redis) == [item]
    run_one(worker, item)
    assert (await ledger.get_batch(batch.id)).state is JobState.CANCELED


async def test_a_lost_worker_keeps_its_items_place(clean_redis: str, ledger: Ledger, worker: WorkerLedger) -> None:
    """Its item goes back to the queue and is rung for; nobody else's turn comes for it."""
    batch = await submit(ledger, matrix(2), cap=1)
    (first,) = rung(clean_redis)
    claim = worker.claim(first, "w", 0)
    assert claim is not None
    assert (await ledger.reap(3)).queued == [first]
    assert rung(clean_redis) == []
    assert await ledger.due_for_doorbell(1, queue=BATCHES_QUEUE) == [first]
    assert await ledger.due_for_doorbell(1) == []
    batch = await ledger.get_batch(batch.id)
    assert (batch.counts[JobState.QUEUED], batch.counts[JobState.RUNNING]) == (4, 0)
    assert not worker.finish(claim, Outcome.SUCCEEDED)
    run_one(worker, first)
    assert len(rung(clean_redis)) == 1
    assert (await ledger.get_batch(batch.id)).counts[JobState.SUCCEEDED] == 1


async def test_lists_by_state_and_label_over_pages(ledger: Ledger) -> None:
    made = [await submit(ledger, matrix(1, labels={"n": str(number)})) for number in range(5)]
    await ledger.cancel_batch(made[0].id)
    page = await ledger.list_batches(BatchFilters(), limit=2)
    assert [batch.id for batch in page.items] == [made[4].id, made[3].id]
    page = await ledger.list_batches(BatchFilters(), limit=2, cursor=page.next_cursor)
    assert [batch.id for batch in page.items] == [made[2].id, made[1].id]
    by_state = await ledger.list_batches(BatchFilters(state=JobState.CANCELED))
    by_label = await ledger.list_batches(BatchFilters(labels=("n=0", "n")))
    assert [each.id for each in by_state.items] == [each.id for each in by_label.items] == [made[0].id]
    with pytest.raises(ProblemError, match="invalid-cursor"):
        await ledger.list_batches(BatchFilters(labels=("n",)), cursor=page.next_cursor)


async def test_items_by_filters_over_pages(ledger: Ledger) -> None:
    batch = await submit(ledger, matrix(3))
    made = await jobs(ledger, batch)
    await ledger.cancel(made[3])
    for filters, wanted in (
        (ItemFilters(), [0, 1, 2, 3, 4, 5]),
        (ItemFilters(format=Format.FP8), [0, 2, 4]),
        (ItemFilters(source=1), [2, 3]),
        (ItemFilters(source=1, state=JobState.CANCELED), [3]),
    ):
        found: list[int] = []
        cursor = None
        while True:
            page = await ledger.batch_items(batch.id, filters, cursor=cursor, limit=2)
            found += [item.index for item in page.items]
            if (cursor := page.next_cursor) is None:
                break
        assert found == wanted


async def test_items_that_wait_for_their_turn_are_not_late(clean_redis: str, ledger: Ledger) -> None:
    """What the alert on a queue that nobody serves looks at."""
    assert (await ledger.gauges()).oldest_queued_seconds == 0
    batch = await submit(ledger, matrix(3), cap=2)
    gauges = await ledger.gauges()
    assert (gauges.states[JobState.QUEUED], gauges.doorbells) == (6, 2)
    first, second, *_ = await jobs(ledger, batch)
    with redis.Redis.from_url(clean_redis) as client:
        now = client.time()[0] * 1000
        client.zadd("draftmill:queued:batches", {first: now - 60_000})
        client.hset(f"draftmill:job:{second}", "t:queued", now - 3_600_000)
    assert 59 < (await ledger.gauges()).oldest_queued_seconds < 120
