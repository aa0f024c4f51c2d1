"""The two tasks: look at a job, answer a preflight."""

import functools
import importlib
import logging
import os
import time
from pathlib import Path

from draftmill.plans import Preflight
from draftmill.problems import ProblemError
from draftmill_service.ledger import WorkerLedger
from draftmill_service.ledger.keys import LOOK_TASK, PREFLIGHT_TASK
from draftmill_worker import metrics
from draftmill_worker.celery_app import app, settings, stopping
from draftmill_worker.heartbeat import worker_name
from draftmill_worker.supervisor import Supervisor

logger = logging.getLogger(__name__)

TEMPLATE_ENV = "DRAFTMILL_TEMPLATE_SOCKET"
"""Set by the launcher: where the template listens."""
HASTE_SECONDS = 1.0


@functools.cache
def _supervisor() -> Supervisor:
    """Made in the child, on its first message: connections do not survive a fork."""
    return Supervisor(
        ledger=WorkerLedger.connect(settings.redis_url, patience=settings.ledger_patience_seconds),
        hasty=WorkerLedger.connect(settings.redis_url, patience=HASTE_SECONDS),
        settings=settings,
        template=Path(os.environ[TEMPLATE_ENV]),
        name=worker_name(),
        draining=stopping,
    )


@app.task(name=LOOK_TASK)  # type: ignore[untyped-decorator]
def look(job_id: str) -> None:
    with stopping.heeded():
        _supervisor().look(job_id)


@functools.cache
def _ledger() -> WorkerLedger:
    return WorkerLedger.connect(settings.redis_url)


@app.task(name=PREFLIGHT_TASK, time_limit=settings.preflight_seconds)  # type: ignore[untyped-decorator]
def preflight(preflight_id: str) -> None:
    """Any problem is the answer. A fault of our own is logged and answered as `internal`."""
    ledger = _ledger()
    spec = ledger.take_preflight(preflight_id)
    if spec is None:
        return
    started = time.monotonic()
    # By name: what it imports is for a child that answers preflights, not for one that supervises.
    stage = importlib.import_module("draftmill_worker.stages.preflight")
    try:
        answer: Preflight = stage.preflight(spec, settings.for_stages())
    except ProblemError as error:
        answer = Preflight(ok=False, problem=error.problem)
    except Exception as error:
        logger.exception("preflight %s", preflight_id)
        answer = Preflight(ok=False, problem=ProblemError("internal", type(error).__name__).problem)
    metrics.PREFLIGHT_SECONDS.observe(time.monotonic() - started)
    ledger.answer_preflight(preflight_id, answer)
