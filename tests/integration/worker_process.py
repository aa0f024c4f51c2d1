"""A real worker in its processes, and the rest of the service that a worker needs: submit, ring, reap."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psutil
from celery import Celery
from kombu.exceptions import OperationalError

from draftmill.formats import Format
from draftmill.jobs import Job, JobSpec, RepoSource
from draftmill.reports import Event
from draftmill.states import Stage, StageState
from draftmill_service.ledger import Ledger, LedgerUnavailable
from draftmill_service.ledger.keys import JOBS_QUEUE, LOOK_TASK, PREFLIGHT_QUEUE, PREFLIGHT_TASK
from draftmill_worker import process
from tests.support import eventually

T = TypeVar("T")
LEASE_SECONDS = 2.0


class Office:
    """The service's part over the real ledger and broker; reaps while the context lasts."""

    def __init__(self, redis_url: str, max_attempts: int = 3) -> None:
        self._url = redis_url
        self._max_attempts = max_attempts
        self._celery = Celery(broker=redis_url, set_as_current=False)
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._reap)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave.set()
        self._thread.join()
        self._celery.close()

    def ask(self, question: Callable[[Ledger], Awaitable[T]]) -> T:
        async def answer() -> T:
            # Other tests sync large files to the same disk, on which an append-only file waits.
            ledger = Ledger.connect(self._url, patience=20)
            try:
                return await question(ledger)
            finally:
                await ledger.close()

        return asyncio.run(answer())

    def _reap(self) -> None:
        while not self._leave.wait(0.2):
            try:
                self.ask(lambda ledger: ledger.reap(self._max_attempts))
                for job_id in self.ask(lambda ledger: ledger.due_for_doorbell(1.0)):
                    self.ring(job_id)
            except (LedgerUnavailable, OperationalError):
                continue

    def ring(self, job_id: str) -> None:
        self._celery.send_task(LOOK_TASK, (job_id,), queue=JOBS_QUEUE)

    def ask_preflight(self, spec: JobSpec) -> str:
        preflight_id = self.ask(lambda ledger: ledger.ask_preflight(spec))
        self._celery.send_task(PREFLIGHT_TASK, (preflight_id,), queue=PREFLIGHT_QUEUE)
        return preflight_id

    def submit(self, spec: JobSpec | None = None, **labels: str) -> str:
        spec = spec or JobSpec(source=RepoSource(repo="a/b"), format=Format.FP8, labels=labels)
        job, _ = self.ask(lambda ledger: ledger.submit(spec, owner="test"))
        self.ring(job.id)
        return job.id

    def job(self, job_id: str) -> Job:
        job = self.ask(lambda ledger: ledger.get(job_id))
        assert job is not None
        return job

    def events(self, job_id: str) -> tuple[Event, ...]:
        return self.ask(lambda ledger: ledger.events(job_id)).items

    def cancel(self, job_id: str) -> Job:
        return self.ask(lambda ledger: ledger.cancel(job_id))

    def done(self, job_id: str, timeout: float = 30.0) -> Job:
        return eventually(lambda: job if (job := self.job(job_id)).done else None, timeout=timeout) or self.job(job_id)

    def reach(self, job_id: str, stage: Stage, attempt: int = 1, timeout: float = 30.0) -> None:
        """Wait until a stage of an attempt runs; a short one may be over by then."""

        def runs() -> bool:
            attempts = self.job(job_id).attempts
            stages = attempts[attempt - 1].stages if len(attempts) >= attempt else ()
            return any(record.name is stage and record.state is not StageState.PENDING for record in stages)

        eventually(runs, timeout=timeout)


class Worker:
    """`draftmill-worker run` in a process of its own. This process adopts what it leaves, so that nothing hides."""

    def __init__(self, folder: Path, redis_url: str, stages: str, **settings: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._environment = {
            **os.environ,
            "DRAFTMILL_REDIS_URL": redis_url,
            "DRAFTMILL_DATA_DIR": str(self.data),
            "DRAFTMILL_LEASE_SECONDS": str(LEASE_SECONDS),
            "DRAFTMILL_STAGES": stages,
            "DRAFTMILL_THREADS": "1",
            "TMPDIR": str(folder),
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        process.become_subreaper()
        if self._process is not None:
            self._process.wait()
        with (self.folder / "worker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "draftmill_worker.cli", "run"], env=self._environment, stdout=log, stderr=log
            )

    def log(self) -> str:
        return (self.folder / "worker.log").read_text()

    @property
    def launcher(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def find(self, part: str) -> psutil.Process:
        """The launcher's child whose command line holds `part`."""

        def look() -> psutil.Process | None:
            for child in self.launcher.children():
                if part in " ".join(child.cmdline()):
                    return child
            return None

        found = eventually(look)
        assert found is not None
        return found

    @property
    def template(self) -> psutil.Process:
        return self.find("draftmill_worker.template")

    @property
    def jobs(self) -> psutil.Process:
        """Celery's main process for jobs."""
        return self.find(JOBS_QUEUE)

    @property
    def supervisor(self) -> psutil.Process:
        """Celery's child, where a job is supervised."""
        return eventually(self.jobs.children)[0]

    def stage_processes(self) -> list[psutil.Process]:
        return [child for child in self.template.children(recursive=True) if process.alive(child)]

    def kill(self) -> None:
        """kill -9 of all its processes at once, as far as that goes."""
        doomed = [self.launcher, *self.launcher.children(recursive=True)]
        for one in doomed:
            one.send_signal(signal.SIGSTOP)
        for one in doomed:
            one.kill()
        self._reap()
        eventually(lambda: not [one for one in doomed if process.alive(one)], timeout=5.0)

    def stop(self, timeout: float = 20.0) -> int:
        """SIGTERM; the exit status."""
        assert self._process is not None
        self._process.terminate()
        status = self._process.wait(timeout)
        self._reap()
        return status

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reap()

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait()
        # Orphans come to this process when the launcher is gone.
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if str(self.folder) in child.environ().values():
                    process.kill_tree(child, 5.0)
