"""The doorbell: the only producer of Celery messages. A message says "look at this job" and owns nothing.

For a new job the ledger pushes the message itself, in the step that makes the job or that gives an item of a batch its
turn: `Doorbell.for_new_jobs` and `for_items` are these messages, made by Celery and Kombu beforehand. Every other ring
goes out from a thread.
"""

import json
import logging
import queue
import threading
import time
import uuid
from typing import Any, NamedTuple

from celery import Celery
from kombu import Connection
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from draftmill_service.ledger.keys import (
    BATCHES_QUEUE,
    JOB_ID_IN_BELL,
    JOBS_QUEUE,
    LOOK_TASK,
    PREFLIGHT_QUEUE,
    PREFLIGHT_TASK,
)

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000
MAX_BATCH = 500
GATHER_SECONDS = 0.005


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


def _look_message(app: Celery, queue: str) -> str:
    """A message of the look task as Kombu's Redis transport stores it, with JOB_ID_IN_BELL for what differs."""
    with Connection("memory://") as connection:
        channel = connection.channel()
        # As plain text, not base64: the id must be found in it.
        channel.body_encoding = None
        id_ = JOB_ID_IN_BELL
        message = app.amqp.as_task_v2(
            id_, LOOK_TASK, args=(id_,), ignore_result=True, argsrepr=id_, kwargsrepr="{}", origin="draftmill"
        )
        connection.Producer(channel).publish(
            message.body,
            exchange="",
            routing_key=queue,
            serializer="json",
            headers=message.headers,
            **message.properties,
        )
        stored = channel._get(queue)
    stored["properties"]["delivery_tag"] = JOB_ID_IN_BELL
    return json.dumps(stored)


class Doorbell:
    """Rings from a thread of its own, so that no request waits for the broker.

    A ring that fails is logged and forgotten: the job is in the ledger, and the reaper rings again.
    """

    def __init__(self, redis_url: str) -> None:
        self._app = make_producer(redis_url)
        self.for_new_jobs = _look_message(self._app, JOBS_QUEUE)
        """Message for a job that has no id yet; `Ledger.submit` takes it."""
        self.for_items = _look_message(self._app, BATCHES_QUEUE)
        """The same for items of batches; `Ledger.submit_batch` takes it."""
        self._producer: Any = None
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

    def ring(self, job_id: str, queue: str = JOBS_QUEUE) -> None:
        """Tell a worker to look at a job. Never blocks, never fails."""
        self._put(Ring(LOOK_TASK, queue, job_id))

    def ring_preflight(self, preflight_id: str) -> None:
        self._put(Ring(PREFLIGHT_TASK, PREFLIGHT_QUEUE, preflight_id))

    def _put(self, ring: Ring) -> None:
        try:
            self._waiting.put_nowait(ring)
        except queue.Full:
            self._failed([ring], "too many rings wait")

    def _failed(self, rings: list[Ring], why: object) -> None:
        self.failures += len(rings)
        logger.warning("doorbell not heard", extra={"rings": [ring.argument for ring in rings], "error": str(why)})

    def _run(self) -> None:
        try:
            while rings := self._next():
                self._send(rings)
        finally:
            self._disconnect()

    def _next(self) -> list[Ring]:
        """What waits, in order; empty when it is time to end."""
        first = self._waiting.get()
        # A burst goes out together: one round trip, and the event loop is interrupted once.
        time.sleep(GATHER_SECONDS)
        rings = [first]
        while rings[-1] is not None and len(rings) < MAX_BATCH and not self._waiting.empty():
            rings.append(self._waiting.get_nowait())
        if rings[-1] is None and len(rings) > 1:
            self._waiting.put(None)
        return [ring for ring in rings if ring is not None]

    def _send(self, rings: list[Ring]) -> None:
        try:
            if self._producer is None:
                self._producer = self._app.amqp.Producer(self._app.connection_for_write())
            with self._producer.batch():
                for ring in rings:
                    self._publish(ring)
        except (KombuError, RedisError, OSError) as error:
            self._failed(rings, error)
            self._disconnect()

    def _publish(self, ring: Ring) -> None:
        message = self._app.amqp.as_task_v2(
            str(uuid.uuid4()),
            ring.task,
            args=(ring.argument,),
            ignore_result=True,
            argsrepr=ring.argument,
            kwargsrepr="{}",
        )
        self._producer.publish(
            message.body,
            # The anonymous exchange needs no declaration: there is no binding that could be lost.
            exchange="",
            routing_key=ring.queue,
            serializer="json",
            headers=message.headers,
            **message.properties,
        )

    def _disconnect(self) -> None:
        if self._producer is not None:
            self._producer.connection.release()
            self._producer = None
