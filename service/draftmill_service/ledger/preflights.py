"""Questions that a worker answers while the caller waits."""

import asyncio
import secrets

from draftmill.jobs import JobSpec
from draftmill.plans import Preflight
from draftmill_service.ledger.access import Access

PREFLIGHT_SECONDS = 120
"""How long a preflight waits for a worker to take it."""


class Preflights(Access):
    async def ask_preflight(self, spec: JobSpec) -> str:
        """Put a question for a worker; the id rings it and finds the answer."""
        preflight_id = secrets.token_hex(16)
        key = self._keys.preflight(preflight_id)
        pipe = self._redis.pipeline()
        pipe.hset(key, mapping={"spec": spec.model_dump_json()})
        pipe.expire(key, PREFLIGHT_SECONDS)
        await self._ask(pipe.execute())
        return preflight_id

    async def preflight_answer(self, preflight_id: str, timeout: float) -> Preflight | None:
        """The answer, or None when no worker gave one within `timeout` seconds."""
        key = self._keys.preflight_answer(preflight_id)
        deadline = asyncio.get_running_loop().time() + timeout
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            block = min(left, 5.0)
            read = self._redis.xread({key: "0"}, block=max(1, round(block * 1000)))
            streams = await self._ask(read, self._patience + block)
            if streams:
                return Preflight.model_validate_json(streams[0][1][0][1]["answer"])
        return None
