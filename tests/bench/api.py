"""POST /v1/jobs beside a bare FastAPI handler with one Redis write: `python -m tests.bench.api`.

Both run in a process of their own under uvicorn over the same Redis, and are asked in turn, by the same client with the
same body, over connections that stay open. Turns are short, so that other work on the machine slows both arms of a
round alike; the median of the rounds' ratios counts.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from draftmill_service.keyring import Keyring, Scope
from tests.redis_server import RedisServer, free_port
from tests.support import eventually

TARGET_RATIO = 0.5
CONNECTIONS = 16
SPEC = {"source": {"repo": "org/drafter"}, "format": "fp8", "labels": {"team": "x"}}


@contextmanager
def process(command: list[str], port: int, **environment: str) -> Iterator[None]:
    """A server that listens on `port` while the block runs."""
    with subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL) as running:
        try:
            eventually(lambda: asyncio.run(listens(port)), timeout=60, interval=0.2)
            yield
        finally:
            running.terminate()


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def one_after_another(port: int, request: bytes, until: float) -> int:
    """Requests answered on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answered = 0
    while time.monotonic() < until:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        status, length = head.split(b" ", 2)[1], head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0]
        body = await reader.readexactly(int(length))
        if not status.startswith(b"2"):
            raise SystemExit(f"answered {status.decode()}: {body.decode()[:500]}")
        answered += 1
    writer.close()
    return answered


async def rate(port: int, path: str, token: str, seconds: float) -> float:
    """Requests per second over all connections."""
    body = json.dumps(SPEC).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", f"Authorization: Bearer {token}", "", ""]
    request = "\r\n".join(lines).encode() + body
    started = time.monotonic()
    asked = (one_after_another(port, request, started + seconds) for _ in range(CONNECTIONS))
    return sum(await asyncio.gather(*asked)) / (time.monotonic() - started)


def measure(folder: Path, rounds: int, seconds: float) -> dict[str, list[float]]:
    data, ports = folder / "data", {"bare": free_port(), "jobs": free_port()}
    data.mkdir()
    token = Keyring(data / "keys.json").create("bench", set(Scope))[1]
    server = RedisServer(folder)
    server.start()
    environment = {"DRAFTMILL_REDIS_URL": server.url, "DRAFTMILL_DATA_DIR": str(data)}
    commands = {
        "bare": [sys.executable, "-m", "tests.bench.bare_api", str(ports["bare"])],
        "jobs": [sys.executable, "-m", "draftmill_service.cli", "run"],
    }
    found: dict[str, list[float]] = {arm: [] for arm in commands}
    try:
        with ExitStack() as stack:
            for arm, command in commands.items():
                port = ports[arm]
                stack.enter_context(process(command, port, DRAFTMILL_PORT=str(port), **environment))
            for turn in range(rounds + 1):
                for arm, port in ports.items():
                    rated = asyncio.run(rate(port, "/v1/jobs", token, seconds))
                    if turn:  # The first round warms up.
                        found[arm].append(rated)
    finally:
        server.stop()
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--seconds", type=float, default=0.7)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given.rounds, given.seconds)
    print(f"requests per second over {CONNECTIONS} connections, {given.rounds} rounds of {given.seconds:g} s")
    print(f"{'':28}{'median':>8}{'best':>8}")
    for arm, title in (("bare", "FastAPI, one Redis write"), ("jobs", "POST /v1/jobs")):
        print(f"{title:28}{median(found[arm]):8.0f}{max(found[arm]):8.0f}")
    ratio = median(jobs / bare for jobs, bare in zip(found["jobs"], found["bare"], strict=True))
    print(f"median ratio {ratio:.2f}; target: at least {TARGET_RATIO}: {'met' if ratio >= TARGET_RATIO else 'MISSED'}")
    return 0 if ratio >= TARGET_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
