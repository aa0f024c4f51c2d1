"""The doorbell: the only producer of Celery messages. A message says "look at this job" and owns nothing."""

import logging
import queue
import threading
from typing import Any, NamedTuple

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from draftmill_service.ledger.keys import JOBS_QUEUE, LOOK_TASK, PREFLIGHT_QUEUE, PREFLIGHT_TASK

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000


class Ring(NamedTuple):
    task: str
    queue: str
    argument: str


def make_producer(redis_url: str) -> Celery:
    app = Celery("draftmill", broker=redis_url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_backend=None,
        task_ignore_result=True,
        broker_transport_options={
            "socket_timeout": 3.0,
            "socket_connect_timeout": 1.0,
            # A doorbell that is not heard now is rung again by the reaper.
            "max_retries": 1,
            "interval_start": 0.05,
            "interval_max": 0.05,
        },
    )
    return app


class Doorbell:
    """Rings from a thread of its own, so that no request waits for the broker.

    A ring that fails is logged and forgotten: the job is in the ledger, and the reaper rings again.
    """

    def __init__(self, redis_url: str) -> None:
        self._app = make_producer(redis_url)
        self._waiting: queue.Queue[Ring | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="doorbell", daemon=True)
        self.failures = 0
        """Rings that were not heard, since the start."""

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Ring what waits, then end; at most `timeout` seconds."""
        try:
            self._waiting.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def ring(self, job_id: str) -> None:
        """Tell a worker to look at a job. Never blocks, never fails."""
        self._put(Ring(LOOK_TASK, JOBS_QUEUE, job_id))

    def ring_preflight(self, preflight_id: str) -> None:
        self._put(Ring(PREFLIGHT_TASK, PREFLIGHT_QUEUE, preflight_id))

    def _put(self, ring: Ring) -> None:
        try:
            self._waiting.put_nowait(ring)
        except queue.Full:
            self._failed(ring, "too many rings wait")

    def _failed(self, ring: Ring, why: object) -> None:
        self.failures += 1
        logger.warning("doorbell not heard", extra={"task": ring.task, "argument": ring.argument, "error": str(why)})

    def _run(self) -> None:
        producer: Any = None
        while (ring := self._waiting.get()) is not None:
            try:
                if producer is None:
                    producer = self._app.amqp.Producer(self._app.connection_for_write())
                # A bare queue name becomes the anonymous exchange: no binding is looked up, so none can be lost.
                self._app.send_task(
                    ring.task, (ring.argument,), queue=ring.queue, producer=producer, ignore_result=True, retry=False
                )
            except (OperationalError, RedisError, OSError) as error:
                self._failed(ring, error)
                _close(producer)
                producer = None
        _close(producer)


def _close(producer: Any) -> None:
    if producer is not None:
        producer.connection.release()
