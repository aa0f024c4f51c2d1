"""The ledger's transitions on a real Redis: claims, leases, fences, cancel, retry, lost workers."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis

from draftmill.formats import Format
from draftmill.jobs import JOB_ID, JobSpec, Progress, RepoSource, StageRecord
from draftmill.plans import Preflight
from draftmill.problems import ProblemError
from draftmill.reports import EventKind
from draftmill.states import JobState, Outcome, Reason, Stage, StageState
from draftmill_service.ledger import Claim, Filters, LeaseLost, Ledger, Signal, WorkerLedger, scripts
from draftmill_service.ledger.keys import MAX_EVENTS
from draftmill_service.ledger.worker_ledger import MAX_LOG_CHARS
from tests.support import eventually


def make_spec(**fields: object) -> JobSpec:
    return JobSpec.model_validate({"source": RepoSource(repo="org/drafter"), "format": Format.FP8, **fields})


async def queue(ledger: Ledger, **fields: object) -> str:
    job, created = await ledger.submit(make_spec(**fields), owner="tests")
    assert created
    return job.id


def claim(worker: WorkerLedger, job_id: str, lease: float = 60) -> Claim:
    claim = worker.claim(job_id, "w1", lease)
    assert claim is not None
    return claim


async def state(ledger: Ledger, job_id: str) -> JobState:
    job = await ledger.get(job_id)
    assert job is not None
    return job.state


async def test_submitted_job_reads_back(ledger: Ledger) -> None:
    spec = make_spec(labels={"team": "x"})
    job, created = await ledger.submit(spec, owner="tests")
    assert created
    assert JOB_ID.fullmatch(job.id)
    assert await ledger.get(job.id) == job
    assert job.spec == spec
    assert job.state is JobState.QUEUED
    assert list(job.timestamps) == [JobState.QUEUED]


async def test_ids_sort_by_submission(ledger: Ledger) -> None:
    ids = [await queue(ledger) for _ in range(50)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 50


async def test_five_claims_at_once_give_one_run(ledger: Ledger, worker: WorkerLedger) -> None:
    job_id = await queue(ledger)
    claims = await asyncio.gather(*(asyncio.to_thread(worker.claim, job_id, f"w{n}", 60) for n in range(5)))
    assert sum(claim is not None for claim in claims) == 1
    job = await ledger.get(job_id)
    assert job is not None
    assert job.state is JobState.RUNNING
    assert len(job.attempts) == 1


async def test_whole_run(ledger: Ledger, worker: WorkerLedger) -> None:
    job_id = await queue(ledger)
    held = claim(worker, job_id)
    assert (held.attempt, held.job.id, held.job.state) == (1, job_id, JobState.RUNNING)
    worker.stage(held, StageRecord(name=Stage.PULL, state=StageState.RUNNING))
    worker.progress(held, Stage.PULL, Progress(done=1, total=2, unit="bytes"))
    worker.log(held, "info", "half way\nthere", Stage.PULL)
    worker.stage(
        held,
        StageRecord(name=Stage.PULL, state=StageState.SUCCEEDED, progress=Progress(done=2, total=2, unit="bytes")),
    )
    assert worker.renew(held, 60) is Signal.CONTINUE
    assert worker.finish(held, Outcome.SUCCEEDED, cached=True)

    job = await ledger.get(job_id)
    assert job is not None
    assert (job.state, job.outcome, job.cached) == (JobState.SUCCEEDED, Outcome.SUCCEEDED, True)
    (attempt,) = job.attempts
    assert attempt.outcome == "succeeded"
    (stage,) = attempt.stages
    assert (stage.name, stage.state) == (Stage.PULL, StageState.SUCCEEDED)
    assert stage.progress == Progress(done=2, total=2, unit="bytes")
    assert stage.started_at is not None
    assert stage.ended_at is not None
    assert set(job.timestamps) == {JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED}

    events = (await ledger.events(job_id)).items
    assert [event.kind for event in events] == [
        "state",
        "state",
        "attempt",
        "stage",
        "progress",
        "log",
        "stage",
        "attempt",
        "state",
    ]
    assert events[0].data == {"state": "queued", "attempt": 0}
    assert events[4].data == {"attempt": 1, "stage": "pull", "progress": {"done": 1, "total": 2, "unit": "bytes"}}
    assert events[5].data == {"level": "info", "message": "half way\nthere", "stage": "pull", "attempt": 1}
    assert events[-1].kind is EventKind.STATE
    assert events[-1].data == {"state": "succeeded", "attempt": 1}


async def test_stale_holder_is_refused_everywhere(ledger: Ledger, worker: WorkerLedger) -> None:
    job_id = await queue(ledger)
    stale = claim(worker, job_id, lease=0)
    assert (await ledger.reap(3)).queued == [job_id]
    fresh = claim(worker, job_id)
    assert fresh.fence > stale.fence
    before = (await ledger.events(job_id)).last_id
    assert worker.renew(stale, 60) is Signal.LOST
    assert worker.finish(stale, Outcome.SUCCEEDED) is False
    progress = Progress(done=1, total=1, unit="files")
    writes: list[Callable[[], None]] = [
        lambda: worker.stage(stale, StageRecord(name=Stage.PULL, state=StageState.RUNNING)),
        lambda: worker.progress(stale, Stage.PULL, progress),
        lambda: worker.log(stale, "info", "still here"),
        lambda: worker.hand_back(stale),
    ]
    for write in writes:
        with pytest.raises(LeaseLost):
            write()
    assert (await ledger.events(job_id, before)).items == ()
    assert await state(ledger, job_id) is JobState.RUNNING
    assert worker.finish(fresh, Outcome.SUCCEEDED)


async def test_lost_attempts_are_bounded(ledger: Ledger, worker: WorkerLedger) -> None:
    """C61: a job that kills its worker each time ends, as worker_lost."""
    job_id = await queue(ledger)
    for _ in range(2):
        worker.stage(claim(worker, job_id, lease=0), StageRecord(name=Stage.QUANTIZE, state=StageState.RUNNING))
        assert (await ledger.reap(3)).queued == [job_id]
    claim(worker, job_id, lease=0)
    assert (await ledger.reap(3)).failed == [job_id]
    job = await ledger.get(job_id)
    assert job is not None
    assert (job.state, job.reason) == (JobState.FAILED, Reason.WORKER_LOST)
    assert job.problem is not None
    assert job.problem.slug == "worker-lost"
    assert [attempt.outcome for attempt in job.attempts] == ["lost"] * 3
    assert job.attempts[0].stages[0].state is StageState.INTERRUPTED
    assert await ledger.reap(3) == ([], [], [], [])


async def test_handed_back_attempts_do_not_count_as_lost(ledger: Ledger, worker: WorkerLedger) -> None:
    job_id = await queue(ledger)
    for _ in range(5):
        worker.hand_back(claim(worker, job_id))
    job = await ledger.get(job_id)
    assert job is not None
    assert job.state is JobState.QUEUED
    assert {attempt.outcome for attempt in job.attempts} == {"interrupted"}
    claim(worker, job_id, lease=0)
    assert (await ledger.reap(3)).queued == [job_id]


async def test_cancel_of_a_queued_job_is_done_at_once(ledger: Ledger, worker: WorkerLedger) -> None:
    """C54: the record says it, so no worker can start it later."""
    job_id = await queue(ledger)
    job = await ledger.cancel(job_id)
    assert (job.state, job.reason) == (JobState.CANCELED, Reason.CANCELED_BY_USER)
    assert worker.claim(job_id, "w1", 60) is None


async def test_cancel_of_a_running_job_reaches_the_worker(ledger: Ledger, worker: WorkerLedger) -> None:
    job_id = await queue(ledger)
    held = claim(worker, job_id)
    assert (await ledger.cancel(job_id)).state is JobState.CANCELING
    assert (await ledger.cancel(job_id)).state is JobState.CANCELING
    assert worker.renew(held, 60) is Signal.CANCEL
    assert worker.finish(held, Outcome.CANCELED, Reason.CANCELED_BY_USER)
    assert await state(ledger, job_id) is JobState.CANCELED


async def test_success_after_a_cancel_is_canceled(ledger: Ledger, worker: WorkerLedger) -> None:
    job_id = await queue(ledger)
    held = claim(worker, job_id)
    await ledger.cancel(job_id)
    assert worker.finish(held, Outcome.SUCCEEDED)
    job = await ledger.get(job_id)
    assert job is not None
    assert (job.state, job.reason, job.attempts[0].outcome) == (
        JobState.CANCELED,
        Reason.CANCELED_BY_USER,
        "canceled",
    )


async def test_cancel_with_a_dead_worker_ends(ledger: Ledger, worker: WorkerLedger) -> None:
    job_id = await queue(ledger)
    claim(worker, job_id, lease=0)
    await ledger.cancel(job_id)
    assert (await ledger.reap(3)).canceled == [job_id]
    assert await state(ledger, job_id) is JobState.CANCELED


async def test_done_jobs_do_not_cancel(ledger: Ledger, worker: WorkerLedger) -> None:
    job_id = await queue(ledger)
    worker.finish(claim(worker, job_id), Outcome.SUCCEEDED)
    with pytest.raises(ProblemError, match="conflict"):
        await ledger.cancel(job_id)
    with pytest.raises(ProblemError, match="conflict"):
        await ledger.retry(job_id)


async def test_retry_starts_afresh_and_keeps_the_attempts(ledger: Ledger, worker: WorkerLedger) -> None:
    job_id = await queue(ledger)
    problem = ProblemError("no-weights", "nothing there").problem
    worker.finish(claim(worker, job_id), Outcome.FAILED, Reason.PULL_FAILED, problem)
    failed = await ledger.get(job_id)
    assert failed is not None
    assert failed.problem == problem
    job = await ledger.retry(job_id)
    assert (job.state, job.reason, job.problem) == (JobState.QUEUED, None, None)
    assert claim(worker, job_id).attempt == 2


async def test_a_retry_whose_answer_was_lost_is_one_retry(ledger: Ledger, worker: WorkerLedger) -> None:
    job_id, other = await queue(ledger), await queue(ledger)
    await ledger.cancel(job_id)
    await ledger.cancel(other)
    asked = {"owner": "a", "idempotency_key": "k"}
    await ledger.retry(job_id, **asked)
    events = (await ledger.events(job_id)).items
    assert (await ledger.retry(job_id, **asked)).state is JobState.QUEUED
    assert (await ledger.events(job_id)).items == events
    # Also when the job has failed again meanwhile.
    worker.finish(claim(worker, job_id), Outcome.FAILED, Reason.INTERNAL)
    assert (await ledger.retry(job_id, **asked)).state is JobState.FAILED
    assert (await ledger.retry(job_id, owner="a", idempotency_key="k2")).state is JobState.QUEUED
    with pytest.raises(ProblemError, match="idempotency-mismatch"):
        await ledger.retry(other, **asked)
    # Another owner's key is another key; and keys of submissions are apart.
    assert (await ledger.retry(other, owner="b", idempotency_key="k")).state is JobState.QUEUED
    _, created = await ledger.submit(make_spec(), **asked)
    assert created


async def test_a_queued_job_tells_its_place(ledger: Ledger, worker: WorkerLedger) -> None:
    ids = [await queue(ledger) for _ in range(4)]

    async def places() -> list[int | None]:
        return [job.queue_position for job_id in ids if (job := await ledger.get(job_id)) is not None]

    assert await places() == [1, 2, 3, 4]
    first = claim(worker, ids[0])
    assert await places() == [None, 1, 2, 3]
    await ledger.cancel(ids[1])
    assert await places() == [None, None, 1, 2]
    # What comes back stands at the end.
    worker.hand_back(first)
    await ledger.retry(ids[1])
    assert await places() == [3, 4, 1, 2]


async def test_ending_twice_is_one_ending(ledger: Ledger, worker: WorkerLedger) -> None:
    """The reply to a finish can be lost, and the client sends it again."""
    job_id = await queue(ledger)
    held = claim(worker, job_id)
    assert worker.finish(held, Outcome.SUCCEEDED)
    events = (await ledger.events(job_id)).items
    assert worker.finish(held, Outcome.SUCCEEDED)
    assert worker.finish(held, Outcome.FAILED, Reason.INTERNAL) is False
    assert (await ledger.events(job_id)).items == events
    assert await state(ledger, job_id) is JobState.SUCCEEDED


async def test_a_retried_job_keeps_its_creation_time(ledger: Ledger) -> None:
    job, _ = await ledger.submit(make_spec(), owner="tests")
    await ledger.cancel(job.id)
    retried = await ledger.retry(job.id)
    assert job.created_at is not None
    assert retried.created_at == job.created_at <= retried.timestamps[JobState.QUEUED]


async def test_deadlines(ledger: Ledger, worker: WorkerLedger) -> None:
    soon = {"deadline": datetime.now(UTC) + timedelta(seconds=0.3)}
    unclaimed, claimed, canceled = await queue(ledger, **soon), await queue(ledger, **soon), await queue(ledger, **soon)
    await ledger.cancel(canceled)
    held = claim(worker, await queue(ledger, **soon))
    eventually(lambda: worker.renew(held, 60) is Signal.EXPIRED)
    assert worker.claim(claimed, "w1", 60) is None
    assert await state(ledger, claimed) is JobState.EXPIRED
    assert (await ledger.reap(3)).expired == [unclaimed]
    job = await ledger.get(unclaimed)
    assert job is not None
    assert job.reason is Reason.DEADLINE_EXCEEDED
    assert job.problem is not None
    assert job.problem.slug == "deadline-exceeded"
    for job_id in (unclaimed, canceled):
        with pytest.raises(ProblemError, match="conflict: the job's deadline has passed"):
            await ledger.retry(job_id)


async def test_a_deadline_in_the_past_makes_no_job(ledger: Ledger) -> None:
    with pytest.raises(ProblemError) as caught:
        await queue(ledger, deadline="2020-01-01T00:00:00Z")
    assert caught.value.problem.slug == "invalid-request"
    assert [offender.where for offender in caught.value.problem.offenders] == ["$.deadline"]
    assert (await ledger.list(Filters())).items == ()


async def test_deadline_during_the_run_reaches_the_worker(ledger: Ledger, worker: WorkerLedger) -> None:
    job_id = await queue(ledger, deadline=datetime.now(UTC) + timedelta(seconds=0.3))
    held = claim(worker, job_id)
    eventually(lambda: worker.renew(held, 60) is Signal.EXPIRED)
    assert (await ledger.reap(3)) == ([], [], [], [])
    assert worker.finish(held, Outcome.EXPIRED, Reason.DEADLINE_EXCEEDED)
    assert await state(ledger, job_id) is JobState.EXPIRED


async def test_doorbell_rings_again_only_for_lost_messages(
    ledger: Ledger, worker: WorkerLedger, clean_redis: str
) -> None:
    """C38, and that a backlog of a busy worker does not pile up messages."""
    first, second = await queue(ledger), await queue(ledger)
    assert await ledger.due_for_doorbell(60) == []
    with redis.Redis.from_url(clean_redis) as broker:
        broker.lpush("draftmill.jobs", "message", "message")
        assert await ledger.due_for_doorbell(0) == []
        broker.delete("draftmill.jobs")
    assert await ledger.due_for_doorbell(0) == [first, second]
    assert await ledger.due_for_doorbell(60) == []
    claim(worker, first)
    assert await ledger.due_for_doorbell(0) == [second]


async def test_preflight_is_taken_once_and_answered(ledger: Ledger, worker: WorkerLedger) -> None:
    spec = make_spec()
    asked = await ledger.ask_preflight(spec)
    assert worker.take_preflight("0" * 32) is None
    assert worker.take_preflight(asked) == spec
    assert worker.take_preflight(asked) is None
    assert await ledger.preflight_answer(asked, 0.05) is None
    answer = Preflight(ok=False, problem=ProblemError("no-weights", "nothing there").problem)
    worker.answer_preflight(asked, answer)
    assert await ledger.preflight_answer(asked, 5) == answer


async def test_one_key_sent_many_times_at_once_makes_one_job(ledger: Ledger) -> None:
    sent = [ledger.submit(make_spec(), owner="tests", idempotency_key="k") for _ in range(16)]
    answers = await asyncio.gather(*sent)
    assert len({job.id for job, _ in answers}) == 1
    assert [created for _, created in answers].count(True) == 1
    assert len((await ledger.list(Filters())).items) == 1


async def test_claim_whose_reply_was_lost_is_found_again(ledger: Ledger, clean_redis: str) -> None:
    """The client sends the same command again; it carries the same nonce."""
    job_id = await queue(ledger)
    with redis.Redis.from_url(clean_redis, decode_responses=True) as client:
        script = client.register_script(scripts.load("claim"))
        first, again, other = (
            script(args=["draftmill", job_id, "w1", 60_000, nonce]) for nonce in ("one", "one", "two")
        )
    assert first == again
    assert other is None
    job = await ledger.get(job_id)
    assert job is not None
    assert len(job.attempts) == 1


async def test_events_of_a_job_are_bounded(ledger: Ledger, worker: WorkerLedger, clean_redis: str) -> None:
    held = claim(worker, await queue(ledger))
    with redis.Redis.from_url(clean_redis) as client:
        script, pipe = client.register_script(scripts.load("log")), client.pipeline(transaction=False)
        for _ in range(MAX_EVENTS + 1000):
            script(args=["draftmill", held.job.id, held.fence, "{}"], client=pipe)
        pipe.execute()
        # Redis trims whole nodes of the stream, of a hundred entries.
        assert MAX_EVENTS <= client.xlen(f"draftmill:events:{held.job.id}") < MAX_EVENTS + 200
    assert worker.finish(held, Outcome.SUCCEEDED)
    (last,) = (await ledger.events(held.job.id, limit=2 * MAX_EVENTS)).items[-1:]
    assert last.data["state"] == "succeeded"


async def test_long_log_lines_are_cut(ledger: Ledger, worker: WorkerLedger) -> None:
    held = claim(worker, await queue(ledger))
    worker.log(held, "info", "x" * 1_000_000)
    logged = (await ledger.events(held.job.id)).items[-1]
    assert len(logged.data["message"]) == MAX_LOG_CHARS


async def test_many_jobs_are_listed_once_each(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Filters that leave few of many, over pages; the walk goes on where its budget ended."""
    monkeypatch.setattr("draftmill_service.ledger.ledger._SCAN", 30)
    ids = [await queue(ledger, labels={"n": str(n % 50)}) for n in range(300)]
    seen: list[str] = []
    cursor = None
    while True:
        page = await ledger.list(Filters(format=Format.FP8, labels=("n=7",)), cursor=cursor, limit=2)
        seen += [job.id for job in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [job_id for n, job_id in enumerate(ids) if n % 50 == 7][::-1]


async def test_the_oldest_first(ledger: Ledger) -> None:
    made = [await queue(ledger, labels={"n": str(n % 2)}) for n in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        page = await ledger.list(Filters(), cursor=cursor, limit=3, oldest_first=True)
        seen += [job.id for job in page.items]
        if (cursor := page.next_cursor) is None:
            break
        with pytest.raises(ProblemError, match="invalid-cursor"):
            await ledger.list(Filters(), cursor=cursor, limit=3)
    assert seen == made
    odd = await ledger.list(Filters(labels=("n=1",)), oldest_first=True)
    assert [job.id for job in odd.items] == made[1::2]


async def test_the_last_events_and_those_before_them(ledger: Ledger, worker: WorkerLedger) -> None:
    held = claim(worker, await queue(ledger))
    for n in range(6):
        worker.log(held, "info", f"line {n}")
    every = (await ledger.events(held.job.id)).items
    last = await ledger.events_before(held.job.id, limit=3)
    assert last.items == every[-3:]
    assert (await ledger.events_before(held.job.id, last.items[0].id)).items == every[:-3]
    assert (await ledger.events_before("j" + "0" * 26)).items == ()


async def test_leases_run_down(ledger: Ledger, worker: WorkerLedger) -> None:
    job_id = await queue(ledger)
    assert await ledger.leases() == {}
    claim(worker, job_id)
    held = await ledger.leases()
    assert held.keys() == {job_id}
    assert held[job_id] > 0
