"""The Celery application. Celery carries doorbells and nothing else: no results, no states, no retries.

Messages are acknowledged when taken: the ledger owns a job, and its reaper rings again for whatever was lost.
"""

import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging, worker_process_init, worker_shutting_down

from draftmill_service.ledger.keys import JOBS_QUEUE, LOOK_TASK, PREFLIGHT_QUEUE, PREFLIGHT_TASK
from draftmill_worker import heartbeat
from draftmill_worker.log import log_to_stderr
from draftmill_worker.process import die_with_parent
from draftmill_worker.settings import WorkerSettings
from draftmill_worker.stopping import Stopping

settings = WorkerSettings()
app = Celery("draftmill", broker=settings.redis_url, include=["draftmill_worker.tasks"], set_as_current=False)
app.conf.update(
    accept_content=["json"],
    task_serializer="json",
    result_backend=None,
    task_ignore_result=True,
    task_acks_late=False,
    task_routes={LOOK_TASK: {"queue": JOBS_QUEUE}, PREFLIGHT_TASK: {"queue": PREFLIGHT_QUEUE}},
    task_create_missing_queues=True,
    worker_pool="prefork",
    worker_concurrency=1,
    # On a loaded machine a fork may need longer than the default of 4 s to report.
    worker_proc_alive_timeout=60.0,
    # With early acknowledgement a worker would otherwise hoard a message behind the one it works on.
    worker_disable_prefetch=True,
    worker_prefetch_multiplier=1,
    # A lost connection to the broker says nothing about the job. True loses jobs over a Redis restart.
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_retry=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={
        "socket_keepalive": True,
        "retry_on_timeout": True,
        "health_check_interval": 10,
        # After an item of a batch a single job is asked for first, and the other way round.
        "queue_order_strategy": "round_robin",
    },
    # Cancel goes through the ledger; the control channel would only be one more thing to reconnect.
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
)

stopping = Stopping()


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _drain(**_: Any) -> None:
    stopping.begin()


@setup_logging.connect  # type: ignore[untyped-decorator]
def _log(**_: Any) -> None:
    log_to_stderr()


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _child(**_: Any) -> None:
    # A job that outlives its worker would hold the lease against everybody else.
    die_with_parent(os.getppid())
    if queues := os.environ.get(heartbeat.QUEUES_ENV):
        heartbeat.show(settings, queues.split(","))
