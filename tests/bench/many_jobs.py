"""Whether many finished jobs slow the service down: `python -m tests.bench.many_jobs [--few N] [--many N]`.

Two services, each over a Redis of its own, one with few finished jobs and one with many, are asked in turns, so that
whatever else the machine does falls on both. A finished job is a real one's record, put back under many ids.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
import redis

from draftmill.jobs import Progress, StageRecord
from draftmill.states import Outcome, Stage, StageState
from draftmill_service.ledger import Ledger, WorkerLedger, scripts
from draftmill_service.ledger.archiving import Record, labels
from tests.integration.live import live_service
from tests.integration.test_api_artifacts import RESOLVED
from tests.integration.test_rebuild import SUMMARY, queue
from tests.redis_server import RedisServer

DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
TARGET_RATIO = 1.3
LABELS = {"team": "serving", "run": "nightly"}


async def finished(url: str) -> Record:
    """What a real job through every stage leaves, its log aside."""
    ledger, worker = Ledger.connect(url), WorkerLedger.connect(url)
    try:
        claim = worker.claim(await queue(ledger, labels=LABELS), "host-1:4242", 60.0)
        assert claim is not None
        for stage in Stage:
            worker.stage(claim, StageRecord(name=stage, state=StageState.RUNNING))
            for done in (0, 50_000_000, 100_000_000):
                worker.progress(claim, stage, Progress(done=done, total=100_000_000, unit="bytes"))
            worker.stage(claim, StageRecord(name=stage, state=StageState.SUCCEEDED))
            if stage is Stage.PLAN:
                worker.resolve(claim, RESOLVED)
        worker.finish(claim, Outcome.SUCCEEDED, summary=SUMMARY)
        record = await ledger.record(claim.job.id)
        assert record is not None
        return record
    finally:
        worker.close()
        await ledger.close()


def job_id(number: int) -> str:
    """In the order of `number`, all in one millisecond of 2026."""
    digits = ""
    for _ in range(8):
        number, digit = divmod(number, 32)
        digits = DIGITS[digit] + digits
    return "j01kbxyz123" + "0000" + "0000" + digits


def fill(url: str, record: Record, count: int) -> list[str]:
    """A ledger of `count` finished jobs like this one; their ids, oldest first."""
    terms = labels(record.job().spec)
    fields = json.dumps([part for item in record.fields.items() for part in item])
    events, ids = json.dumps(record.events), [job_id(number) for number in range(count)]
    with redis.Redis.from_url(url) as client:
        client.flushall()
        restore = client.script_load(scripts.load("restore"))
        for start in range(0, count, 500):
            pipe = client.pipeline(transaction=False)
            for one in ids[start : start + 500]:
                pipe.evalsha(restore, 0, "draftmill", one, 0, 0, fields, events, *terms)
            pipe.execute()
    return ids


@dataclass
class Side:
    """One service and what was timed at it."""

    client: httpx.Client
    ids: list[str]
    bytes_per_job: float
    random: Random = field(default_factory=lambda: Random(7))
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cursor: str = ""

    def ask(self, name: str, path: str) -> httpx.Response:
        started = time.perf_counter()
        answer = self.client.get(path)
        self.seconds.setdefault(name, []).append(time.perf_counter() - started)
        answer.raise_for_status()
        return answer

    def walk(self) -> None:
        """The next page, from the newest job on."""
        page = self.ask("next page", f"/v1/jobs?limit=50&cursor={self.cursor}" if self.cursor else "/v1/jobs?limit=50")
        self.cursor = page.json()["next_cursor"] or ""

    def slowest(self, percent: int, name: str, batches: int) -> float:
        """A percentile, the least of some batches': other work on the machine can only slow a batch down."""
        timed = self.seconds[name]
        size = len(timed) // batches
        ordered = (sorted(timed[start : start + size]) for start in range(0, size * batches, size))
        return min(batch[size * percent // 100] for batch in ordered)


@contextmanager
def side(folder: Path, count: int) -> Iterator[Side]:
    folder.mkdir()
    server = RedisServer(folder)
    server.start()
    try:
        with redis.Redis.from_url(server.url) as client:
            empty = client.info("memory")["used_memory"]
            ids = fill(server.url, asyncio.run(finished(server.url)), count)
            used = client.info("memory")["used_memory"] - empty
        with live_service(server.url, folder / "data") as live, live.client() as client:
            yield Side(client, ids, used / count)
    finally:
        server.stop()


ASKED: dict[str, Callable[[Side], object]] = {
    "GET one": lambda side: side.ask("GET one", f"/v1/jobs/{side.random.choice(side.ids)}"),
    "first page": lambda side: side.ask("first page", "/v1/jobs?limit=50"),
    "next page": lambda side: side.walk(),
    "by state and label": lambda side: side.ask(
        "by state and label", "/v1/jobs?limit=50&state=succeeded&label=team%3Dserving"
    ),
    "none found": lambda side: side.ask("none found", "/v1/jobs?limit=50&state=running&label=team"),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.many_jobs", description=__doc__)
    parser.add_argument("--few", type=int, default=1_000)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=100, help="requests of each kind in a batch")
    parser.add_argument("--batches", type=int, default=10)
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        few, many = (stack.enter_context(side(folder / str(count), count)) for count in (options.few, options.many))
        for turn in range(options.rounds * options.batches + 20):
            if turn == 20:
                few.seconds.clear()
                many.seconds.clear()
            for ask in ASKED.values():
                for one in (few, many) if turn % 2 else (many, few):
                    ask(one)
    print(f"Percentiles of {options.rounds} requests (ms), the best of {options.batches} batches, by finished jobs")
    print(f"{'':22}{'':>6}{options.few:9}{options.many:9}{'ratio':>9}")
    worst = 0.0
    for name in ASKED:
        for percent in (50, 99):
            at_few, at_many = (one.slowest(percent, name, options.batches) for one in (few, many))
            print(f"{name:22}{f'p{percent}':>6}{at_few * 1000:9.2f}{at_many * 1000:9.2f}{at_many / at_few:9.2f}")
        worst = max(worst, at_many / at_few)
    print(f"memory of Redis per finished job: {many.bytes_per_job / 1024:.1f} KiB")
    print(f"target: no ratio of p99 above {TARGET_RATIO}: {'met' if worst <= TARGET_RATIO else 'MISSED'}")
    return 0 if worst <= TARGET_RATIO else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
