"""C38: a Redis that may drop keys is no ledger."""

from pathlib import Path

import pytest
import redis

from tests.integration.live import live_service
from tests.integration.test_api import problem
from tests.redis_server import RedisServer


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_redis_that_evicts_is_never_ready(durable_redis: RedisServer, tmp_path: Path, policy: str) -> None:
    with (
        redis.Redis.from_url(durable_redis.url) as client,
        live_service(durable_redis.url, tmp_path) as live,
        live.client() as api,
    ):
        assert api.get("/readyz").status_code == 200
        client.config_set("maxmemory-policy", policy)
        assert policy in problem(api.get("/readyz"), "ledger-unavailable")["detail"]
        client.config_set("maxmemory-policy", "noeviction")
        assert api.get("/readyz").status_code == 200
