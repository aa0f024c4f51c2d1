"""`draftmill up` and the Hub stand-in as processes, for the demo and the end-to-end tests."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from draftmill import Client
from draftmill.connection import read_embedded
from tests.support import eventually

DRAFTMILL = str(Path(sys.executable).with_name("draftmill"))
# The Hub stand-in does not speak Xet; tests report nothing to anybody.
_QUIET = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_FOREIGN = ("DRAFTMILL_", "REDIS_URL", "HF_TOKEN", "HF_ENDPOINT", "HF_HOME")
START_SECONDS = 120.0


def environment(**more: str) -> dict[str, str]:
    """This process' environment without settings of the developer's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return kept | _QUIET | more


class Up:
    """A running `draftmill up`. Leaving the block stops it as Ctrl-C does and checks that it left nothing behind."""

    def __init__(
        self, data_dir: Path, hub: str | None = None, *, options: tuple[str, ...] = (), **environ: str
    ) -> None:
        self.data_dir = data_dir
        self._options = options
        self._environ = environment(**({} if hub is None else {"DRAFTMILL_HUB_ENDPOINT": hub}), **environ)

    def __enter__(self) -> Self:
        command = [DRAFTMILL, "up", "--json", "--port", "0", "--data-dir", str(self.data_dir), *self._options]
        self._log_before = self._worker_log.stat().st_size if self._worker_log.exists() else 0
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=self._environ, text=True
        )
        self.announced: dict[str, Any] = self._announcement()
        self._descendants: set[psutil.Process] = set()
        return self

    def _announcement(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        if not select.select([self.process.stdout], [], [], START_SECONDS)[0]:
            self.process.kill()
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"draftmill up did not start: {self.process.communicate()[1]}")
        announced: dict[str, Any] = json.loads(line)
        return announced

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.stop()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        """Stops it; its exit code, once it and everything below it is gone."""
        self.note_descendants()
        self.process.send_signal(how)
        code = self.process.wait(timeout=60)
        gone, alive = psutil.wait_procs(self._descendants, timeout=5)
        assert not alive, f"left behind after {len(gone)} ended: {alive}"
        return code

    def note_descendants(self) -> None:
        """Remembers who runs now, so that `stop` can tell whether they are gone."""
        self._descendants.update(psutil.Process(self.process.pid).children(recursive=True))

    def child(self, name: str) -> psutil.Process:
        """The direct child `redis`, `api` or `worker`, once it runs."""
        mark = {"redis": "-server", "api": "draftmill_service.cli", "worker": "draftmill_worker.cli"}[name]

        def find() -> psutil.Process | None:
            for process in psutil.Process(self.process.pid).children():
                try:
                    if any(mark in word for word in process.cmdline()):
                        return process
                except psutil.NoSuchProcess:
                    continue
            return None

        found = eventually(find, timeout=30)
        assert found is not None
        return found

    def kill(self, name: str) -> None:
        """kill -9 of one of the three."""
        self.note_descendants()
        self.child(name).kill()

    def client(self) -> Client:
        state = read_embedded(self.data_dir)
        assert state is not None
        return Client(state.url, state.api_key)

    def run(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """A `draftmill` command line that finds this service by itself."""
        environ = environment(DRAFTMILL_DATA_DIR=str(self.data_dir))
        return subprocess.run(
            [DRAFTMILL, *words], capture_output=True, text=True, check=False, env=environ, timeout=timeout
        )

    def wait_until_warm(self) -> None:
        """Until the worker's template has done its imports; jobs would wait for it anyway."""

        def ready() -> bool:
            return b'"template ready"' in self._worker_log.read_bytes()[self._log_before :]

        eventually(ready, timeout=START_SECONDS, interval=0.2)

    @property
    def _worker_log(self) -> Path:
        return self.data_dir / "logs" / "worker.log"


@contextmanager
def standin(repos: Mapping[str, Path]) -> Iterator[str]:
    """The Hub stand-in as a process of its own; its URL."""
    served = [word for name, folder in repos.items() for word in ("--repo", f"{name}={folder}")]
    command = [sys.executable, "-m", "tests.fixtures.hub", "--port", "0", *served]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                raise AssertionError("the Hub stand-in did not start")
            yield url
        finally:
            process.terminate()
