"""A durable Redis per module and an `Office` over it: fixtures of the tests that run real workers."""

from collections.abc import Iterator

import pytest

from tests.integration.worker_process import Office
from tests.redis_server import RedisServer


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), append_only=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def office(redis_server: RedisServer) -> Iterator[Office]:
    with Office(redis_server.url) as office:
        yield office
