"""Done batches outlast their Redis as done jobs do, and retention forgets them: never while an item wants them."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import redis

from draftmill.batches import Batch, BatchPage, BatchReport
from draftmill.problems import ProblemError
from draftmill.states import JobState, Outcome
from draftmill_service.archivist import RECORD, Archivist
from draftmill_service.ledger import Filters, Ledger, WorkerLedger
from draftmill_service.ledger.batches import BatchFilters
from draftmill_service.rebuild import rebuild
from draftmill_service.retention.gc import Collector, Report
from draftmill_service.retention.layout import Kind
from draftmill_service.retention.pins import Pins
from draftmill_service.retention.policy import Limits
from draftmill_service.retention.tombstones import read_tombstone
from tests.integration.live import Live
from tests.integration.test_api import problem
from tests.integration.test_ledger_batches import jobs, matrix, run_one, submit

EVERYTHING = Limits(jobs_days=0)


@pytest.fixture
def archivist(ledger: Ledger, tmp_path: Path) -> Archivist:
    return Archivist(ledger, tmp_path, every=0.1)


@pytest.fixture
def flush(clean_redis: str) -> Callable[[], None]:
    def run() -> None:
        with redis.Redis.from_url(clean_redis) as client:
            client.flushall()

    return run


async def ended(ledger: Ledger, worker: WorkerLedger, *outcomes: Outcome, **more: object) -> Batch:
    """A batch with an item for each outcome, in the order of their turns."""
    batch = await submit(ledger, matrix(len(outcomes), formats=["fp8"], **more), cap=64)
    for job_id, outcome in zip(await jobs(ledger, batch), outcomes, strict=True):
        run_one(worker, job_id, outcome)
    batch = await ledger.get_batch(batch.id)
    assert batch.done
    return batch


def collect(data: Path, ledger: Ledger, *, dry: bool = False) -> "asyncio.Future[Report]":
    collector = Collector(data, ledger, EVERYTHING)
    return asyncio.ensure_future(collector.dry_run() if dry else collector.run())


def gone(report: Report) -> set[str]:
    return {line.name for line in report.removed if line.kind is Kind.BATCH}


async def everything(ledger: Ledger, *batches: Batch) -> tuple[list[Batch], list[BatchReport], list[BatchPage]]:
    filters = (BatchFilters(), *(BatchFilters(state=state) for state in JobState), BatchFilters(labels=("team=x",)))
    return (
        [await ledger.get_batch(batch.id) for batch in batches],
        [await ledger.batch_report(batch.id) for batch in batches],
        [await ledger.list_batches(one) for one in filters],
    )


async def test_what_ended_comes_back_as_it_was_and_goes_on(
    ledger: Ledger, worker: WorkerLedger, archivist: Archivist, flush: Callable[[], None], tmp_path: Path
) -> None:
    mixed = await ended(ledger, worker, Outcome.SUCCEEDED, Outcome.FAILED, labels={"team": "x"})
    well = await ended(ledger, worker, Outcome.SUCCEEDED)
    stopped = await submit(ledger, matrix(2))
    await ledger.cancel_batch(stopped.id)
    before = await everything(ledger, mixed, well, stopped)
    assert [batch.state for batch in before[0]] == [JobState.FAILED, JobState.SUCCEEDED, JobState.CANCELED]
    assert await archivist.work() == 2 + 1 + 4 + 3
    assert await archivist.work() == 0
    flush()
    done = await rebuild(ledger, worker, tmp_path)
    assert (done.restored, done.batches, done.unreadable) == (7, 3, ())
    assert await everything(ledger, mixed, well, stopped) == before
    # Once more changes nothing.
    again = await rebuild(ledger, worker, tmp_path)
    assert (again.restored, again.batches) == (0, 0)
    assert await everything(ledger, mixed, well, stopped) == before
    # It goes on: a retry of the whole, counted, and new ids behind the old ones.
    retried = await ledger.retry_batch(mixed.id)
    assert (retried.state, retried.counts[JobState.QUEUED]) == (JobState.RUNNING, 1)
    run_one(worker, (await jobs(ledger, mixed))[1])
    assert (await ledger.get_batch(mixed.id)).state is JobState.SUCCEEDED
    assert (await submit(ledger, matrix(1))).id > stopped.id


async def test_a_batch_that_went_on_is_archived_when_it_ends_again(
    ledger: Ledger, worker: WorkerLedger, archivist: Archivist, flush: Callable[[], None], tmp_path: Path
) -> None:
    batch = await ended(ledger, worker, Outcome.FAILED, Outcome.SUCCEEDED)
    (due,) = await ledger.batches_due_for_archive()
    await ledger.retry_batch(batch.id)
    # At work again: there is nothing to write.
    await archivist.work()
    assert not (tmp_path / "batches").exists()
    run_one(worker, (await jobs(ledger, batch))[0])
    # A slow archivist that had read of the first ending does not take the second off the list.
    await ledger.batch_archived(due)
    await archivist.work()
    flush()
    await rebuild(ledger, worker, tmp_path)
    assert (await ledger.get_batch(batch.id)).state is JobState.SUCCEEDED


async def test_an_item_whose_job_is_lost_counts_as_failed(
    ledger: Ledger, worker: WorkerLedger, archivist: Archivist, flush: Callable[[], None], tmp_path: Path
) -> None:
    batch = await ended(ledger, worker, Outcome.SUCCEEDED, Outcome.SUCCEEDED)
    lost, kept = await jobs(ledger, batch)
    await archivist.work()
    flush()
    (tmp_path / "jobs" / lost / RECORD).unlink()
    assert (await rebuild(ledger, worker, tmp_path)).batches == 1
    found = await ledger.get_batch(batch.id)
    assert (found.state, found.counts[JobState.FAILED], found.counts[JobState.SUCCEEDED]) == (JobState.FAILED, 1, 1)
    rows = (await ledger.batch_report(batch.id)).rows
    assert [(row.job, row.state) for row in rows] == [(lost, None), (kept, JobState.SUCCEEDED)]


async def test_a_damaged_record_leaves_its_items_as_jobs_of_their_own(
    ledger: Ledger, worker: WorkerLedger, archivist: Archivist, flush: Callable[[], None], tmp_path: Path
) -> None:
    batches = [await ended(ledger, worker, Outcome.FAILED) for _ in range(3)]
    await archivist.work()
    flush()
    cut, short = (tmp_path / "batches" / batch.id / RECORD for batch in batches[:2])
    cut.write_bytes(cut.read_bytes()[:-9])
    record = json.loads(short.read_bytes())
    short.write_text(json.dumps({**record, "items": []}))
    done = await rebuild(ledger, worker, tmp_path)
    assert (done.batches, done.unreadable) == (1, (batches[0].id, batches[1].id))
    found = (await ledger.list(Filters(), oldest_first=True)).items
    assert [job.batch for job in found] == [None, None, batches[2].id]
    with pytest.raises(ProblemError, match="not-found"):
        await ledger.get_batch(batches[0].id)
    # It is queued as a single job is: a worker may take it at once.
    assert (await ledger.retry(found[0].id)).queue_position == 1
    assert worker.claim(found[0].id, "w", 60) is not None


async def test_gc_forgets_what_its_dry_run_said(
    ledger: Ledger, worker: WorkerLedger, archivist: Archivist, tmp_path: Path
) -> None:
    old, pinned, of_a_pinned_item = [await ended(ledger, worker, Outcome.FAILED, Outcome.SUCCEEDED) for _ in range(3)]
    unfinished = await submit(ledger, matrix(2), cap=1)
    run_one(worker, (await jobs(ledger, unfinished))[0])
    unarchived = await ended(ledger, worker, Outcome.SUCCEEDED)
    (due,) = [one for one in await ledger.batches_due_for_archive() if one.id == unarchived.id]
    await ledger.batch_archived(due)
    await archivist.work()
    Pins(tmp_path).add(f"batches/{pinned.id}")
    Pins(tmp_path).add(f"jobs/{(await jobs(ledger, of_a_pinned_item))[0]}")
    asked_for_again = await ended(ledger, worker, Outcome.FAILED)
    await archivist.work()
    said = await collect(tmp_path, ledger, dry=True)
    assert gone(said) == {f"batches/{batch.id}" for batch in (old, asked_for_again)}
    items = await jobs(ledger, old)
    await ledger.retry_batch(asked_for_again.id)
    done = await collect(tmp_path, ledger)
    assert gone(done) == {f"batches/{old.id}"}
    assert not (tmp_path / "batches" / old.id).exists()
    assert {path.name for path in (tmp_path / "batches").iterdir()} == {
        ".trash",
        f"{old.id}.tombstone.json",
        *(batch.id for batch in (pinned, of_a_pinned_item, asked_for_again)),
    }
    stone = read_tombstone(tmp_path / "batches" / f"{old.id}.tombstone.json")
    assert stone is not None
    assert stone.kind is Kind.BATCH
    with pytest.raises(ProblemError, match="expired"):
        await ledger.get_batch(old.id)
    for batch in (pinned, of_a_pinned_item, unfinished, unarchived, asked_for_again):
        assert (await ledger.get_batch(batch.id)).id == batch.id
    # Its jobs stay, and one that is wanted again goes on by itself.
    assert (await ledger.retry(items[0])).batch is None
    run_one(worker, items[0])
    job = await ledger.get(items[0])
    assert job is not None
    assert job.state is JobState.SUCCEEDED
    # It stays forgotten.
    assert (await rebuild(ledger, worker, tmp_path)).batches == 0
    assert gone(await collect(tmp_path, ledger, dry=True)) == set()


async def test_a_gc_that_was_cut_short_is_ended_by_the_next(
    ledger: Ledger, worker: WorkerLedger, archivist: Archivist, tmp_path: Path
) -> None:
    batch = await ended(ledger, worker, Outcome.SUCCEEDED)
    await archivist.work()
    assert await ledger.remove_batch(batch.id)
    assert await ledger.remove_batch(batch.id)
    assert gone(await collect(tmp_path, ledger)) == {f"batches/{batch.id}"}
    assert not (tmp_path / "batches" / batch.id).exists()


def test_a_removed_batch_is_gone_and_says_so(api: httpx.Client, live: Live, clean_redis: str) -> None:
    answer = api.post("/v1/batches", json={"sources": [{"repo": "org/a"}], "formats": ["fp8"]})
    batch_id = answer.json()["id"]

    async def remove() -> bool:
        ledger = Ledger.connect(clean_redis)
        try:
            return await ledger.remove_batch(batch_id)
        finally:
            await ledger.close()

    assert not asyncio.run(remove())
    api.post(f"/v1/batches/{batch_id}/cancel")
    assert asyncio.run(remove())
    for path in ("", "/items", "/report"):
        problem(api.get(f"/v1/batches/{batch_id}{path}"), "expired")
    for verb in ("cancel", "retry"):
        problem(api.post(f"/v1/batches/{batch_id}/{verb}"), "expired")
