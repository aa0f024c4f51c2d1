from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import redis

from draftmill_service.ledger import Ledger, WorkerLedger
from tests.integration.live import Live, live_service
from tests.integration.offices import office, redis_server  # noqa: F401
from tests.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One real server for the run, without persistence. Tests share it: use `clean_redis` for an empty one."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def clean_redis(redis_url: str) -> str:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    return redis_url


@pytest.fixture
def durable_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own that survives kill -9: append-only file, synced before each reply."""
    server = RedisServer(tmp_path, append_only=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def ledger(clean_redis: str) -> AsyncIterator[Ledger]:
    ledger = Ledger.connect(clean_redis)
    yield ledger
    await ledger.close()


@pytest.fixture
def worker(clean_redis: str) -> Iterator[WorkerLedger]:
    worker = WorkerLedger.connect(clean_redis)
    yield worker
    worker.close()


# Per module: its reaper would take jobs from tests of the ledger that share the server.
@pytest.fixture(scope="module")
def _service(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_service(redis_url, tmp_path_factory.mktemp("data")) as live:
        yield live


@pytest.fixture
def live(_service: Live, clean_redis: str) -> Live:
    """The running service, with an empty ledger. Tests of a module share its data directory."""
    return _service


@pytest.fixture
def api(live: Live) -> Iterator[httpx.Client]:
    """A client whose key has every scope."""
    with live.client() as client:
        yield client
