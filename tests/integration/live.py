"""The real service under uvicorn, in a thread of the test's process, with keys of each scope."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from draftmill.plans import Preflight
from draftmill_service.doorbell import make_producer
from draftmill_service.keyring import Keyring, Scope
from draftmill_service.ledger import WorkerLedger
from draftmill_service.ledger.keys import PREFLIGHT_QUEUE, PREFLIGHT_TASK
from draftmill_service.server import Server
from draftmill_service.settings import ServiceSettings
from tests.redis_server import free_port
from tests.support import eventually


class Live:
    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.data_dir = settings.data_dir
        self.url = f"http://{settings.host}:{settings.port}"
        keyring = Keyring(settings.keys_file)
        self.tokens = {scope: keyring.create(f"{scope} only", {scope})[1] for scope in Scope}
        self.token = keyring.create("everything", set(Scope))[1]

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=10)


@contextmanager
def live_service(redis_url: str, data_dir: Path, **settings: object) -> Iterator[Live]:
    """Preflights time out after half a second: no worker is there to answer."""
    wanted = {"redis_url": redis_url, "data_dir": data_dir, "port": free_port(), "preflight_seconds": 0.5, **settings}
    live = Live(ServiceSettings.model_validate(wanted))
    server = Server(live.settings)
    thread = threading.Thread(target=server.run, name="live service")
    thread.start()
    try:
        eventually(lambda: server.started, timeout=20)
        yield live
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def answering_worker(redis_url: str, answer: Preflight) -> Iterator[None]:
    """A real consumer of the preflight queue that gives every question this answer."""
    stop = threading.Event()

    def consume() -> None:
        worker = WorkerLedger.connect(redis_url)
        with (
            make_producer(redis_url).connection_for_read() as connection,
            connection.SimpleQueue(PREFLIGHT_QUEUE) as queue,
        ):
            while not stop.is_set():
                try:
                    message = queue.get(timeout=0.2)
                except queue.Empty:
                    continue
                message.ack()
                assert message.headers["task"] == PREFLIGHT_TASK
                (asked,) = message.payload[0]
                if worker.take_preflight(asked) is not None:
                    worker.answer_preflight(asked, answer)
        worker.close()

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()
