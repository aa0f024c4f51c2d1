"""Starts a worker's processes, restarts those that die, and drains them on SIGTERM.

    launcher ─┬─ template                       forks the stage processes
              ├─ Celery worker for jobs         one job at a time, of single jobs and of batches in turn
              ├─ Celery worker for preflights   so that they never wait behind a job
              └─ metrics                        shows Prometheus what the others count, where a port is set

All die with the launcher. It adopts and kills what a template that died has left.
"""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from draftmill_service.ledger.keys import BATCHES_QUEUE, JOBS_QUEUE, PREFLIGHT_QUEUE
from draftmill_worker import process
from draftmill_worker.heartbeat import QUEUES_ENV
from draftmill_worker.scratch import sweep
from draftmill_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
STOPS = {signal.SIGTERM, signal.SIGINT}
TICK_SECONDS = 1.0
RESTART_SECONDS = 1.0
"""A child that dies is started again after this pause."""
LEAVE_SECONDS = 5.0
"""What Celery may take to leave, beyond the time a job is given to end."""
_SECRET = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "DRAFTMILL_REDIS_URL", "DRAFTMILL_API_KEY")
SECRETS = (*_SECRET, *(f"{name}_FILE" for name in _SECRET))
"""Not for the template: stage processes are its forks. Pull is handed its token by the supervisor."""


@dataclass
class Child:
    name: str
    command: list[str]
    environment: dict[str, str]
    running: "subprocess.Popen[bytes] | None" = None
    not_before: float = 0.0

    def start(self) -> None:
        launcher = os.getpid()

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            process.die_with_parent(launcher)

        self.running = subprocess.Popen(
            self.command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            # Ctrl-C is for the launcher, which drains.
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - the launcher has no threads
        )
        logger.info("%s is process %d", self.name, self.running.pid)

    def check(self) -> bool:
        """Whether it runs."""
        return self.running is not None and self.running.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.running is not None and self.check():
            self.running.send_signal(number)


def _celery(name: str, queue: str) -> list[str]:
    host = f"{name}-{os.getpid()}@{socket.gethostname()}"
    options = ["--queues", queue, "--hostname", host, "--concurrency", "1", "--loglevel", "INFO"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return [sys.executable, "-m", "celery", "--app", "draftmill_worker.celery_app", "worker", *options, *quiet]


def _children(settings: WorkerSettings, template_socket: Path, environment: Mapping[str, str]) -> list[Child]:
    template = [sys.executable, "-m", "draftmill_worker.template", str(template_socket), settings.stages]
    scrubbed = {name: value for name, value in environment.items() if name not in SECRETS}
    counted = {} if settings.metrics_port is None else {"PROMETHEUS_MULTIPROC_DIR": str(_metrics(template_socket))}
    pools = {**environment, **counted, "DRAFTMILL_TEMPLATE_SOCKET": str(template_socket)}
    taken = f"{JOBS_QUEUE},{BATCHES_QUEUE}"
    shown = {QUEUES_ENV: f"{taken},{PREFLIGHT_QUEUE}"}
    children = [
        Child("template", template, scrubbed),
        Child("jobs", _celery("jobs", taken), pools | shown),
        Child("preflight", _celery("preflight", PREFLIGHT_QUEUE), pools),
    ]
    if counted:
        server = [sys.executable, "-m", "draftmill_worker.metrics_server"]
        children.append(Child("metrics", server, {**scrubbed, **counted}))
    return children


def _metrics(template_socket: Path) -> Path:
    folder = template_socket.with_name("metrics")
    folder.mkdir()
    return folder


class Launcher:
    def __init__(self, settings: WorkerSettings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._folder = Path(tempfile.mkdtemp(prefix="draftmill-"))
        self._children = _children(settings, self._folder / "template", environment)
        self._pools = self._children[1:3]

    def run(self) -> None:
        """Until SIGTERM or SIGINT; a second one does not wait for the drain."""
        process.become_subreaper()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        swept = sweep(self._settings.data_dir / "jobs")
        if swept:
            logger.info("removed the scratch folders of %d dead attempts", swept)
        try:
            self._keep()
            self._drain()
        finally:
            process.reap_children(LEAVE_SECONDS)
            shutil.rmtree(self._folder)
            logger.info("worker stopped")

    def _keep(self) -> None:
        while True:
            self._start()
            if self._wait(TICK_SECONDS) in STOPS:
                return
            self._bury()

    def _wait(self, seconds: float) -> int | None:
        """The signal that arrived within the time."""
        info = signal.sigtimedwait(SIGNALS, seconds)
        return None if info is None else info.si_signo

    def _start(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if not child.check() and now >= child.not_before:
                child.start()
                child.not_before = now + RESTART_SECONDS

    def _bury(self) -> None:
        """Note which children died, then kill and reap the orphans that this process was given."""
        for child in self._children:
            if child.running is not None and child.running.poll() is not None:
                logger.warning("%s died with status %d", child.name, child.running.returncode)
                child.running = None
        known = {child.running.pid for child in self._children if child.running is not None}
        for orphan in psutil.Process().children():
            if orphan.pid not in known:
                process.kill_tree(orphan, 0.0)
                os.waitpid(orphan.pid, 0)

    def _drain(self) -> None:
        logger.info("draining")
        for pool in self._pools:
            pool.signal(signal.SIGTERM)
        deadline = time.monotonic() + self._settings.drain_seconds + LEAVE_SECONDS
        while any(pool.check() for pool in self._pools) and (left := deadline - time.monotonic()) > 0:
            if self._wait(min(left, TICK_SECONDS)) in STOPS:
                return
