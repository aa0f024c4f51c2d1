"""A worker shows itself to the ledger from its start on: seen before its first job, missed when it is gone."""

import logging
import os
import socket
import threading
from collections.abc import Sequence
from importlib.metadata import version

from draftmill_service.ledger import LedgerUnavailable, WorkerLedger
from draftmill_service.ledger.workers import About
from draftmill_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

QUEUES_ENV = "DRAFTMILL_QUEUES"
"""Set by the launcher for the one child that shows the worker: the queues of both pools, separated by commas."""
LIVES = 3
"""A worker is gone once so many beats have not come."""
PATIENCE_SECONDS = 1.0


def worker_name() -> str:
    """Of the process that supervises jobs: as attempts and the ledger's list of workers name it."""
    return f"{socket.gethostname()}:{os.getpid()}"


def show(settings: WorkerSettings, queues: Sequence[str]) -> None:
    """Beat from now to the end of this process."""
    about = About(
        host=socket.gethostname(), queues=tuple(queues), build=version("draftmill"), benchmarks=settings.benchmarks
    )
    ledger = WorkerLedger.connect(settings.redis_url, patience=PATIENCE_SECONDS)
    beats = (ledger, worker_name(), about, settings.heartbeat_seconds)
    threading.Thread(target=_beat, args=beats, name="heartbeat", daemon=True).start()


def _beat(ledger: WorkerLedger, name: str, about: About, every: float) -> None:
    away = False
    pause = threading.Event()
    while True:
        try:
            ledger.show(name, about, LIVES * every)
            away = False
        except LedgerUnavailable as error:
            if not away:
                logger.warning("this worker cannot show itself: %s", error)
            away = True
        pause.wait(every)
