"""Workers that are there: each by a record of its own, which lapses unless the worker renews it."""

from datetime import datetime
from typing import NamedTuple

from draftmill._model import Model
from draftmill_service.ledger import records
from draftmill_service.ledger.access import Access


class About(Model):
    """What a worker says of itself."""

    host: str
    queues: tuple[str, ...]
    """That it takes messages from."""
    build: str
    """Version of the distribution that it runs."""
    benchmarks: bool
    """Whether it takes jobs that ask for a benchmark."""


class Present(NamedTuple):
    name: str
    """As attempts name it."""
    about: About
    since: datetime


class Presence(Access):
    async def workers(self) -> list[Present]:
        """Those that showed themselves lately, by name."""
        names = sorted(await self._ask(self._redis.zrange(self._keys.workers, 0, -1)))
        pipe = self._redis.pipeline(transaction=False)
        for name in names:
            pipe.hgetall(self._keys.worker(name))
        found = await self._ask(pipe.execute())
        return [
            Present(name, About.model_validate_json(record["about"]), records.instant(record["since"]))
            for name, record in zip(names, found, strict=True)
            if record
        ]
