"""Both clients against the real service on a real Redis."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from draftmill import BatchSpec, Client, EventKind, Format, JobSpec, JobState, ProblemError, RepoSource, _calls
from draftmill._calls import Call
from draftmill.formats import FORMATS
from draftmill.states import Outcome
from draftmill_service.api.app import create_app
from draftmill_service.ledger import WorkerLedger
from tests.integration.live import Live, live_service
from tests.integration.test_api import claim
from tests.integration.test_api_artifacts import PLAN, REPORT, RESOLVED, WEIGHTS, write
from tests.redis_server import RedisServer, free_port
from tests.unit.client.conftest import FAST, Blocking

SPEC = JobSpec(source=RepoSource(repo="org/drafter"), format=Format.FP8, labels={"team": "x"})
MATRIX = BatchSpec(sources=(SPEC.source, RepoSource(repo="org/other")), formats=(Format.FP8, Format.NVFP4))


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, live: Live) -> Iterator[Any]:
    if request.param == "async":
        yield Blocking(live.url, live.token)
    else:
        with Client(live.url, live.token, retry=FAST) as client:
            yield client


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(ProblemError) as caught:
        call()
    return caught.value.problem.slug


def test_a_job_is_submitted_once_per_key(client: Any) -> None:
    job = client.submit(SPEC, idempotency_key="k1")
    assert job.state is JobState.QUEUED
    assert job.spec == SPEC
    assert client.submit(SPEC, idempotency_key="k1") == job == client.get(job)
    assert client.submit(SPEC).id != job.id
    other = SPEC.model_copy(update={"format": Format.NVFP4})
    assert refused(lambda: client.submit(other, idempotency_key="k1")) == "idempotency-mismatch"


def test_lists_are_whole_over_pages_and_filters(client: Any) -> None:
    ids = [client.submit(SPEC).id for _ in range(5)]
    other = client.submit(SPEC.model_copy(update={"format": Format.NVFP4, "labels": {}}))
    client.cancel(other)
    assert [job.id for job in client.list(page_size=2)] == [other.id, *reversed(ids)]
    assert [job.id for job in client.list(labels=("team=x",), page_size=2)] == list(reversed(ids))
    assert [job.id for job in client.list(state=JobState.CANCELED)] == [other.id]
    assert [job.id for job in client.list(format=Format.NVFP4, labels=("team",))] == []


def test_cancel_and_retry_move_the_job(client: Any) -> None:
    job = client.submit(SPEC)
    assert client.cancel(job).state is JobState.CANCELED
    assert client.cancel(job).state is JobState.CANCELED
    assert client.retry(job).state is JobState.QUEUED
    assert refused(lambda: client.retry(job)) == "conflict"
    page = client.events(job)
    assert [event.data["state"] for event in page.items] == ["queued", "canceled", "queued"]
    assert client.events(job, after=page.items[0].id).items == page.items[1:]


def test_what_is_not_there_has_its_problem(client: Any) -> None:
    unknown = "j" + "0" * 26
    assert refused(lambda: client.get(unknown)) == "not-found"
    assert refused(lambda: list(client.watch(unknown))) == "not-found"
    job = client.submit(SPEC)
    for call in (client.plan, client.verify, client.artifacts):
        assert refused(lambda call=call: call(job)) == "not-ready"  # type: ignore[misc]
    source = RepoSource(repo="org/drafter")
    assert refused(lambda: client.preflight(source, Format.FP8)) == "preflight-timeout"


def test_the_client_makes_every_call_that_the_api_has(live: Live) -> None:
    job, path, boot, batch = "j" + "0" * 26, "config.json", "b" + "0" * 32, "s" + "0" * 26
    source = RepoSource(repo="a/b")
    calls: list[Call[Any]] = [
        _calls.submit(SPEC),
        _calls.list_jobs(),
        *(
            call(job)
            for call in (
                _calls.get,
                _calls.cancel,
                _calls.retry,
                _calls.events,
                _calls.plan,
                _calls.verify,
                _calls.acceptance,
                _calls.head,
                _calls.choice,
                _calls.artifacts,
            )
        ),
        _calls.artifact(job, path, offset=0, etag="0"),
        _calls.preflight(source, Format.FP8, SPEC.quantize),
        _calls.formats(),
        _calls.submit_batch(MATRIX),
        _calls.list_batches(),
        *(
            call(batch)
            for call in (
                _calls.get_batch,
                _calls.batch_items,
                _calls.batch_report,
                _calls.cancel_batch,
                _calls.retry_batch,
            )
        ),
        _calls.list_receipts(),
        _calls.receipt(boot),
        _calls.diff_receipts(boot, boot),
        _calls.receipt_chains(),
    ]
    stand_ins = ((job, "{job_id}"), (path, "{path}"), (boot, "{boot}"), (batch, "{batch_id}"))
    made = set()
    for call in calls:
        template = call.path
        for value, name in stand_ins:
            template = template.replace(value, name)
        made.add((call.method, template))
    documented = {
        (method.upper(), path)
        for path, operations in create_app(live.settings).openapi()["paths"].items()
        for method in operations
        if path.startswith("/v1/")
    }
    assert made == documented


def test_a_batch_is_submitted_watched_and_stopped(client: Any, worker: WorkerLedger) -> None:
    batch = client.submit_batch(MATRIX, idempotency_key="k1")
    assert (batch.spec, batch.total) == (MATRIX, 4)
    assert client.submit_batch(MATRIX, idempotency_key="k1") == batch == client.get_batch(batch)
    other = client.submit_batch(MATRIX)
    assert [each.id for each in client.batches(page_size=1)] == [other.id, batch.id]
    items = list(client.batch_items(batch, page_size=3))
    assert [item.index for item in items] == [0, 1, 2, 3]
    assert [item.index for item in client.batch_items(batch, source=1, format=Format.FP8)] == [2]
    assert client.cancel_batch(other).outcome is Outcome.CANCELED
    assert [each.id for each in client.batches(state=JobState.CANCELED)] == [other.id]
    assert client.retry_batch(other).state is JobState.QUEUED

    with ThreadPoolExecutor() as pool:
        watching = pool.submit(lambda: list(client.watch_batch(batch, every=0.05)))
        for item in items:
            worker.finish(claim(worker, item.job), Outcome.SUCCEEDED)
        seen = watching.result(timeout=20)
    assert (seen[-1].state, seen[-1].counts[JobState.SUCCEEDED]) == (JobState.SUCCEEDED, 4)
    assert [row.state for row in client.batch_report(batch).rows] == [JobState.SUCCEEDED] * 4


def test_formats_are_the_services(client: Any) -> None:
    assert client.formats() == tuple(FORMATS.values())


def test_a_wrong_key_is_refused(live: Live) -> None:
    with Client(live.url, "dm_000000000000_" + "0" * 64) as client:
        assert refused(lambda: client.submit(SPEC)) == "unauthenticated"


def test_watch_sees_the_job_to_its_end_and_a_retry_too(client: Any, worker: WorkerLedger) -> None:
    job = client.submit(SPEC)
    worker.finish(claim(worker, job.id), Outcome.FAILED)
    client.retry(job)
    with ThreadPoolExecutor() as pool:
        watching = pool.submit(lambda: list(client.watch(job)))
        held = claim(worker, job.id)
        worker.log(held, "info", "hello")
        worker.finish(held, Outcome.SUCCEEDED)
        events = watching.result(timeout=20)
    states = [event.data["state"] for event in events if event.kind is EventKind.STATE]
    assert states == ["queued", "running", "failed", "queued", "running", "succeeded"]
    assert [event.id for event in events] == [event.id for event in client.events(job).items]


def test_watch_goes_on_when_the_service_is_started_again(redis_url: str, worker: WorkerLedger, tmp_path: Path) -> None:
    port = free_port()
    seen: list[str] = []
    running = threading.Event()

    def follow(url: str, token: str, job_id: str) -> None:
        with Client(url, token) as client:
            for event in client.watch(job_id):
                seen.append(event.id)
                running.set()

    with live_service(redis_url, tmp_path, port=port) as live, Client(live.url, live.token) as client:
        job = client.submit(SPEC)
        watcher = threading.Thread(target=follow, args=(live.url, live.token, job.id))
        watcher.start()
        assert running.wait(20)
    with live_service(redis_url, tmp_path, port=port) as live, Client(live.url, live.token) as client:
        worker.finish(claim(worker, job.id), Outcome.SUCCEEDED)
        watcher.join(30)
        assert not watcher.is_alive()
        assert seen == [event.id for event in client.events(job).items]


def test_watch_goes_on_when_redis_was_killed(durable_redis: RedisServer, tmp_path: Path) -> None:
    with live_service(durable_redis.url, tmp_path) as live, Client(live.url, live.token) as client:
        job = client.submit(SPEC)
        with ThreadPoolExecutor() as pool:
            events = client.watch(job)
            first = next(events)
            durable_redis.stop()
            watching = pool.submit(lambda: list(events))
            durable_redis.start()
            worker = WorkerLedger.connect(durable_redis.url)
            worker.finish(claim(worker, job.id), Outcome.SUCCEEDED)
            worker.close()
            rest = watching.result(timeout=30)
        assert [first.id, *(event.id for event in rest)] == [event.id for event in client.events(job).items]


@pytest.fixture
def sealed(client: Any, live: Live, worker: WorkerLedger) -> str:
    """A succeeded job whose variant lies in the store."""
    files = {"model.safetensors": WEIGHTS, "nested/modeling.py": b"class Drafter: ..."}
    files["plan.json"] = PLAN.model_dump_json(by_alias=True).encode()
    listed = [
        {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in files.items()
    ]
    job = client.submit(SPEC)
    held = claim(worker, job.id)
    worker.resolve(held, RESOLVED, "eagle3")
    worker.finish(held, Outcome.SUCCEEDED)
    for path, data in files.items():
        write(live.data_dir / "variants" / RESOLVED.variant / path, data)
    evidence = live.data_dir / "evidence" / RESOLVED.variant
    write(evidence / "manifest.json", json.dumps({"files": listed}).encode())
    write(evidence / job.id / "verify.json", REPORT.model_dump_json(by_alias=True).encode())
    return str(job.id)


def test_plan_report_and_files_come_as_they_were_written(client: Any, sealed: str, tmp_path: Path) -> None:
    assert client.plan(sealed) == PLAN
    assert client.verify(sealed) == REPORT
    done = client.download(sealed, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == WEIGHTS
    assert (tmp_path / "out" / "nested" / "modeling.py").exists()
    assert done.artifacts == client.artifacts(sealed)


def test_an_interrupted_download_gets_only_the_rest(client: Any, sealed: str, tmp_path: Path) -> None:
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    (tmp_path / f"model.safetensors.{digest[:12]}.part").write_bytes(WEIGHTS[:100_000])
    done = client.download(sealed, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert done.received_bytes == sum(file.size for file in done.artifacts.files) - 100_000
