"""Asking for jobs costs the same among few and among many finished ones: counted in commands of Redis, not in time."""

from collections.abc import Awaitable, Callable
from functools import partial

import redis

from draftmill.states import JobState
from draftmill_service.ledger import Filters, Ledger
from tests.bench.many_jobs import fill, finished

FILTERS = (Filters(), Filters(state=JobState.SUCCEEDED, labels=("team=serving",)), Filters(state=JobState.RUNNING))


def _calls(url: str) -> int:
    """Commands that Redis ran so far, those of scripts too."""
    with redis.Redis.from_url(url) as client:
        return sum(command["calls"] for command in client.info("commandstats").values())


async def _costs(ledger: Ledger, url: str, ids: list[str]) -> list[int]:
    """Of a job, of first pages, and of a page in the middle."""
    middle = (await ledger.list(Filters(), limit=len(ids) // 2)).next_cursor
    asks: list[Callable[[], Awaitable[object]]] = [
        lambda: ledger.get(ids[0]),
        *(partial(ledger.list, one, limit=20) for one in FILTERS),
        lambda: ledger.list(Filters(), cursor=middle, limit=20),
    ]
    costs = []
    for ask in asks:
        await ask()
        before = _calls(url)
        await ask()
        # Asking for the count is a command too.
        costs.append(_calls(url) - before)
    return costs


async def test_the_cost_does_not_grow_with_the_jobs(ledger: Ledger, clean_redis: str) -> None:
    record = await finished(clean_redis)
    few = await _costs(ledger, clean_redis, fill(clean_redis, record, 60))
    many = await _costs(ledger, clean_redis, fill(clean_redis, record, 1_000))
    assert many == few


async def test_a_walk_meets_every_job_once(ledger: Ledger, clean_redis: str) -> None:
    ids, met, cursor = fill(clean_redis, await finished(clean_redis), 1_000), list[str](), None
    while True:
        page = await ledger.list(Filters(labels=("team",)), cursor=cursor, limit=170)
        met += [job.id for job in page.items]
        if (cursor := page.next_cursor) is None:
            break
    assert met == list(reversed(ids))
