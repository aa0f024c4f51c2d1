"""Done jobs outlast their Redis: archived as they end, and put back as they were."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import redis

from draftmill.archive.layout import RECEIPTS
from draftmill.formats import Format
from draftmill.jobs import Job, JobPage, JobSpec, Progress, RepoSource, StageRecord, Summary
from draftmill.problems import ProblemError
from draftmill.reports import EventPage
from draftmill.states import JobState, Outcome, Reason, Stage, StageState
from draftmill_service.archivist import RECORD, Archivist
from draftmill_service.ledger import Claim, Filters, Ledger, WorkerLedger
from draftmill_service.rebuild import Rebuilt, Unfinished, rebuild
from draftmill_worker.receipts.archive import ArchiveWriter
from tests.integration.live import Live
from tests.integration.test_api import submit
from tests.integration.test_api_artifacts import RESOLVED
from tests.support import eventually

SUMMARY = Summary(
    source_bytes=2,
    variant_bytes=1,
    tensors_quantized=3,
    tensors_kept=4,
    checks_passed=5,
    checks_warned=0,
    checks_failed=0,
)
Flush = Callable[[], None]


@pytest.fixture
def flush(clean_redis: str) -> Flush:
    def run() -> None:
        with redis.Redis.from_url(clean_redis) as client:
            client.flushall()

    return run


@pytest.fixture
def archivist(ledger: Ledger, tmp_path: Path) -> Archivist:
    return Archivist(ledger, tmp_path, every=0.1)


async def queue(ledger: Ledger, **fields: object) -> str:
    spec = JobSpec.model_validate({"source": RepoSource(repo="org/drafter"), "format": Format.FP8, **fields})
    job, _ = await ledger.submit(spec, owner="tests")
    return job.id


def begin(worker: WorkerLedger, job_id: str, data: Path, lease: float = 60.0) -> Claim:
    """A claim whose first stage left its request on the disk."""
    claim = worker.claim(job_id, "w", lease)
    assert claim is not None
    folder = data / "jobs" / job_id / str(claim.attempt) / Stage.PULL
    folder.mkdir(parents=True)
    (folder / "request.json").write_text("{}")
    worker.stage(claim, StageRecord(name=Stage.PULL, state=StageState.RUNNING))
    return claim


async def make_endings(ledger: Ledger, worker: WorkerLedger, data: Path) -> list[str]:
    """Jobs that ended in every way."""
    soon = datetime.now(UTC) + timedelta(seconds=0.2)
    well, failed, lost, canceled, expired = [
        await queue(ledger, labels={"team": "\u00fc", "n": str(n)}, deadline=soon if n == 4 else None) for n in range(5)
    ]
    held = begin(worker, well, data)
    worker.resolve(held, RESOLVED)
    worker.progress(held, Stage.PULL, Progress(done=1, total=2, unit="bytes"))
    worker.log(held, "warning", 'a "line" \u2028 of \x1b text')
    worker.finish(held, Outcome.SUCCEEDED, summary=SUMMARY, cached=True)
    why = ProblemError("no-weights", "nothing there").problem
    worker.finish(begin(worker, failed, data), Outcome.FAILED, Reason.PULL_FAILED, why)
    begin(worker, lost, data, lease=0.0)
    await ledger.reap(1)
    await ledger.cancel(canceled)

    async def late() -> bool:
        await ledger.reap(1)
        job = await ledger.get(expired)
        return job is not None and job.state is JobState.EXPIRED

    while not await late():
        await asyncio.sleep(0.05)
    return [well, failed, lost, canceled, expired]


async def everything(ledger: Ledger, ids: list[str]) -> tuple[list[Job | None], list[EventPage], list[JobPage]]:
    filters = [
        Filters(),
        *(Filters(state=state) for state in JobState),
        Filters(format=Format.FP8, labels=("team=\u00fc",)),
        Filters(family="eagle3"),
        Filters(labels=("n=2",)),
    ]
    return (
        [await ledger.get(job_id) for job_id in ids],
        [await ledger.events(job_id) for job_id in ids],
        [await ledger.list(one) for one in filters],
    )


async def test_what_ended_is_as_it_was(
    ledger: Ledger, worker: WorkerLedger, archivist: Archivist, flush: Flush, tmp_path: Path
) -> None:
    ids = await make_endings(ledger, worker, tmp_path)
    before = await everything(ledger, ids)
    assert {job.state for job in before[0] if job} == {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.CANCELED,
        JobState.EXPIRED,
    }
    assert await archivist.work() == len(ids)
    assert await archivist.work() == 0
    flush()
    done = await rebuild(ledger, worker, tmp_path)
    assert (done.restored, done.known, done.unfinished, done.unreadable) == (5, 0, (), ())
    assert await everything(ledger, ids) == before
    # Once more changes nothing.
    assert (await rebuild(ledger, worker, tmp_path)).known == 5
    assert await everything(ledger, ids) == before
    # The ledger goes on: ids behind the old ones, and a retry of what failed.
    assert await queue(ledger) > max(ids)
    assert (await ledger.retry(ids[1])).state is JobState.QUEUED
    claim = worker.claim(ids[1], "w", 60.0)
    assert claim is not None
    assert claim.attempt == 2


async def test_what_had_not_ended_is_reported(
    ledger: Ledger, worker: WorkerLedger, archivist: Archivist, flush: Flush, tmp_path: Path
) -> None:
    running, again = await queue(ledger), await queue(ledger)
    begin(worker, running, tmp_path)
    worker.finish(begin(worker, again, tmp_path), Outcome.FAILED, Reason.INTERNAL)
    await archivist.work()
    await ledger.retry(again)
    begin(worker, again, tmp_path)
    flush()
    done = await rebuild(ledger, worker, tmp_path)
    assert done.restored == 0
    assert done.unfinished == (
        Unfinished(job=running, attempts=1, stage="pull"),
        # Its record is of an attempt before the last.
        Unfinished(job=again, attempts=2, stage="pull"),
    )


async def test_an_ending_after_a_retry_is_archived_too(
    ledger: Ledger, worker: WorkerLedger, archivist: Archivist, flush: Flush, tmp_path: Path
) -> None:
    job_id = await queue(ledger)
    await ledger.cancel(job_id)
    (due,) = await ledger.due_for_archive()
    await ledger.retry(job_id)
    # Queued again: there is nothing to write.
    assert await archivist.work() == 1
    assert not (tmp_path / "jobs" / job_id / RECORD).exists()
    await ledger.cancel(job_id)
    # A slow archivist that had read of the first ending does not take the second off the list.
    await ledger.archived(due)
    assert await archivist.work() == 1
    flush()
    assert (await rebuild(ledger, worker, tmp_path)).restored == 1
    assert [event.data.get("state") for event in (await ledger.events(job_id)).items] == [
        "queued",
        "canceled",
        "queued",
        "canceled",
    ]


async def test_damaged_records_are_named_and_the_others_restored(
    ledger: Ledger, worker: WorkerLedger, archivist: Archivist, flush: Flush, tmp_path: Path
) -> None:
    ids = [await queue(ledger) for _ in range(6)]
    for job_id in ids:
        await ledger.cancel(job_id)
    await archivist.work()
    flush()
    paths = [tmp_path / "jobs" / job_id / RECORD for job_id in ids]
    paths[0].write_bytes(paths[0].read_bytes()[:-20])
    paths[1].write_bytes(paths[2].read_bytes())
    record = json.loads(paths[3].read_bytes())
    paths[3].write_text(json.dumps({**record, "fields": {**record["fields"], "state": "running"}}))
    del record["fields"]["spec"]
    paths[4].write_text(json.dumps({**record, "id": ids[4]}))
    (tmp_path / "jobs" / "no-job").mkdir()
    done = await rebuild(ledger, worker, tmp_path)
    assert (done.restored, done.unreadable) == (2, (ids[0], ids[1], ids[3], ids[4]))
    assert [job.id for job in (await ledger.list(Filters())).items] == [ids[5], ids[2]]


async def test_a_removed_job_stays_removed(
    ledger: Ledger, worker: WorkerLedger, archivist: Archivist, tmp_path: Path
) -> None:
    job_id = await queue(ledger)
    await ledger.cancel(job_id)
    await archivist.work()
    await ledger.remove(job_id)
    assert (await rebuild(ledger, worker, tmp_path)).known == 1
    assert await ledger.get(job_id) is None


async def test_heads_of_chains_are_the_archives(
    ledger: Ledger, worker: WorkerLedger, flush: Flush, tmp_path: Path
) -> None:
    for writer in ("a", "b"):
        archive = ArchiveWriter(tmp_path / RECEIPTS, writer, worker)
        archive.open(b"{}").fail()
    before = await ledger.chain_heads()
    flush()
    broken = tmp_path / RECEIPTS / "chains" / "b.jsonl"
    broken.write_bytes(broken.read_bytes().replace(b'"seq":2', b'"seq":3'))
    done = await rebuild(ledger, worker, tmp_path)
    assert done.chains == ("a",)
    assert done.findings
    assert (await ledger.chain_heads()).items == before.items[:1]


async def test_a_disk_that_fails_keeps_the_job_on_the_list(
    ledger: Ledger, archivist: Archivist, tmp_path: Path
) -> None:
    job_id = await queue(ledger)
    await ledger.cancel(job_id)
    (tmp_path / "jobs").write_text("in the way")
    with pytest.raises(OSError, match="jobs"):
        await archivist.work()
    (tmp_path / "jobs").unlink()
    assert await archivist.work() == 1
    assert (tmp_path / "jobs" / job_id / RECORD).is_file()
    assert [path.name for path in (tmp_path / "jobs" / job_id).iterdir()] == [RECORD]


def test_the_running_service_archives_and_the_command_rebuilds(api: httpx.Client, live: Live, clean_redis: str) -> None:
    job_id = submit(api)
    api.post(f"/v1/jobs/{job_id}/cancel")
    path = live.data_dir / "jobs" / job_id / RECORD
    eventually(path.is_file)
    before, events = api.get(f"/v1/jobs/{job_id}").json(), api.get(f"/v1/jobs/{job_id}/events").json()
    with redis.Redis.from_url(clean_redis) as client:
        eventually(lambda: client.zcard("draftmill:unarchived") == 0)
        client.flushall()
    assert api.get(f"/v1/jobs/{job_id}").status_code == 404
    environment = {**os.environ, "DRAFTMILL_REDIS_URL": clean_redis, "DRAFTMILL_DATA_DIR": str(live.data_dir)}
    command = [sys.executable, "-m", "draftmill_service.cli", "rebuild", "--json"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert Rebuilt.model_validate_json(ran.stdout).restored >= 1
    assert api.get(f"/v1/jobs/{job_id}").json() == before
    assert api.get(f"/v1/jobs/{job_id}/events").json() == events
