"""A worker shows itself from its start on, and is gone when it is: a real one, and what the page makes of it."""

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import httpx

from draftmill.states import Stage
from draftmill_service.ledger import Ledger, WorkerLedger
from draftmill_service.ledger.keys import BATCHES_QUEUE, JOBS_QUEUE, PREFLIGHT_QUEUE
from draftmill_service.ledger.workers import About, Present
from tests.integration.live import Live
from tests.integration.test_web import signed_in
from tests.integration.worker_process import Office, Worker
from tests.redis_server import RedisServer
from tests.support import eventually

SMALL = "tests.integration.worker_stages.small"
QUEUES = (JOBS_QUEUE, BATCHES_QUEUE, PREFLIGHT_QUEUE)
ABOUT = About(host="mill-7", queues=QUEUES, build="9.9.9", benchmarks=False)


def test_a_worker_is_seen_before_its_first_job_and_missed_when_it_is_gone(
    office: Office, redis_server: RedisServer, tmp_path: Path
) -> None:
    def seen() -> list[Present]:
        return office.ask(lambda ledger: ledger.workers())

    assert seen() == []
    worker = Worker(tmp_path, redis_server.url, SMALL, DRAFTMILL_HEARTBEAT_SECONDS="0.2", DRAFTMILL_BENCHMARKS="false")
    worker.start()
    try:
        (there,) = eventually(seen, timeout=60)
        assert there.about.queues == QUEUES
        assert (there.about.build, there.about.benchmarks) == (version("draftmill"), False)
        assert there.name.startswith(f"{there.about.host}:")
        assert there.since <= datetime.now(UTC)
        job_id = office.submit(quantize="pause")
        office.reach(job_id, Stage.QUANTIZE, timeout=60)
        # While it works as well, and under the name that the attempt says.
        assert [(one.name, one.since) for one in seen()] == [(office.job(job_id).attempts[0].worker, there.since)]
        worker.kill()
        eventually(lambda: seen() == [], timeout=60)
    finally:
        worker.close()


async def test_a_record_lapses_by_itself_and_a_late_sign_begins_anew(ledger: Ledger, worker: WorkerLedger) -> None:
    worker.show("b", ABOUT, 60)
    worker.show("a", ABOUT, 0.01)
    first = await ledger.workers()
    assert first[-1].name == "b"
    while len(await ledger.workers()) > 1:
        worker.show("b", ABOUT, 60)
    assert await ledger.workers() == first[-1:]
    worker.show("a", ABOUT, 60)
    assert [one.name for one in await ledger.workers()] == ["a", "b"]


def test_the_page_shows_who_is_there_and_who_is_not(live: Live, clean_redis: str, worker: WorkerLedger) -> None:
    with signed_in(live, live.token) as browser, live.client() as api:
        assert "There is no worker" in browser.get("/ui/queues").text
        worker.show("mill-7:42", ABOUT, 60)
        page = browser.get("/ui/queues").text
        assert "mill-7:42" in page
        assert "9.9.9" in page
        assert "no benchmarks" in page
        job_id = _submit(api)
        claim = worker.claim(job_id, "mill-8:1", 60)
        assert claim is not None
        row = next(part for part in browser.get("/ui/queues").text.split("<tr>") if "mill-8:1" in part)
        assert job_id in row
        assert "shows itself no more" in row


def _submit(api: httpx.Client) -> str:
    answer = api.post("/v1/jobs", json={"source": {"repo": "org/drafter"}, "format": "fp8"})
    return str(answer.json()["id"])
