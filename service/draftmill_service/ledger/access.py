"""Asking Redis from the event loop: scripts, patience, and one name for every way it can be away."""

import asyncio
from collections.abc import Awaitable
from typing import Any, Self, TypeVar, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.commands.core import AsyncScript

from draftmill_service.ledger import scripts
from draftmill_service.ledger.errors import AWAY, LedgerUnavailable
from draftmill_service.ledger.keys import PREFIX, Keys
from draftmill_service.ledger.packing import pool

T = TypeVar("T")


class Access:
    """Every method raises LedgerUnavailable when Redis does not answer within `patience` seconds."""

    def __init__(self, redis: Redis, prefix: str = PREFIX, *, patience: float = 1.8) -> None:
        """`redis` decodes responses, as the one that `connect` makes."""
        self._redis = redis
        self._keys = Keys(prefix)
        self._patience = patience
        self._scripts: dict[str, AsyncScript] = {}

    @classmethod
    def connect(cls, url: str, *, prefix: str = PREFIX, patience: float = 1.8) -> Self:
        connections = pool(
            url,
            decode_responses=True,
            retry=Retry(ExponentialBackoff(cap=0.4, base=0.05), retries=4),
            socket_connect_timeout=1.0,
            # `patience` bounds every call, and knows which of them blocks for how long.
            socket_timeout=None,
        )
        return cls(Redis.from_pool(connections), prefix, patience=patience)

    async def close(self) -> None:
        await self._redis.aclose()

    async def _ask(self, answer: Awaitable[T], patience: float | None = None) -> T:
        try:
            async with asyncio.timeout(self._patience if patience is None else patience):
                return await answer
        except (*AWAY, TimeoutError) as error:
            raise LedgerUnavailable("Redis does not answer") from error

    async def _run(self, name: str, *args: Any) -> Any:
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self._redis.register_script(scripts.load(name))
        return await self._ask(script(args=[self._keys.prefix, *args]))

    async def ping(self) -> None:
        await self._ask(cast("Awaitable[bool]", self._redis.ping()))

    async def eviction_policy(self) -> str | None:
        """The policy by which Redis may drop keys when its memory is full; None where it refuses writes instead."""
        memory = await self._ask(cast("Awaitable[dict[str, Any]]", self._redis.info("memory")))
        policy = str(memory.get("maxmemory_policy", "noeviction"))
        return None if policy == "noeviction" else policy
