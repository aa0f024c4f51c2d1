"""One boot of an engine, from the outside: a fresh interpreter, watched, ended, and nothing left of it."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import psutil
from pydantic import ValidationError

from draftmill.problems import Offender, ProblemError
from draftmill_worker import process
from draftmill_worker.bench import memory
from draftmill_worker.bench.wire import Answer, EngineResult
from draftmill_worker.devices import VISIBLE
from draftmill_worker.receipts.archive import Boot
from draftmill_worker.receipts.redact import Redactor

MODULE = "draftmill_worker.bench.engine_main"
POLL_SECONDS = 0.2
KILL_SECONDS = 10.0
RELEASE_SECONDS = 60.0
LINES = 12
"""Of the engine's last words that a problem repeats."""
Progress = Callable[[int], None]
"""Told the number of prompts done."""


A = TypeVar("A", bound=Answer)


class Files(Protocol):
    """What an engine process is asked, and where it speaks."""

    @property
    def request(self) -> Path: ...

    @property
    def stdout(self) -> Path: ...

    @property
    def stderr(self) -> Path: ...


class EngineKilledError(ProblemError):
    """The engine died of a signal, whoever sent it: it did not come to an end of its own."""


@dataclass(frozen=True)
class Ran(Generic[A]):
    argv: tuple[str, ...]
    result: A
    ended: datetime
    seconds: float


Launched = Ran[EngineResult]


def launch(boot: Boot, environment: dict[str, str], home: Path, deadline: float, progress: Progress) -> Launched:
    """Run the engine process of an opened boot to its end: see `run`."""
    return run(boot, environment, home, deadline, progress, module=MODULE, answer=EngineResult)


def run(
    boot: Files,
    environment: dict[str, str],
    home: Path,
    deadline: float,
    progress: Progress,
    *,
    module: str,
    answer: type[A],
) -> Ran[A]:
    """Run `python -m module REQUEST RESULT PARENT PROGRESS` to its end. `home` is a folder of its own, `deadline` in
    seconds, `answer` the model of RESULT.

    ProblemError("boot-failed") when it ends without a result, with its last words, EngineKilledError when a signal ends
    it; whatever problem the engine process found. Its processes are gone either way, and a GPU's memory is back.
    """
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    result = home / "result.json"
    shown = environment.get(VISIBLE)
    free, started = memory.free_bytes(shown), time.monotonic()
    with _pipe() as (reading, writing):
        argv = (sys.executable, "-m", module, str(boot.request), str(result), str(os.getpid()), str(writing))
        with boot.stdout.open("ab") as stdout, boot.stderr.open("ab") as stderr:
            engine = subprocess.Popen(
                argv,
                env=environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(writing,),
                start_new_session=True,
            )
        try:
            ended = _watch(engine, reading, started + deadline, progress)
        finally:
            _clear(engine)
    gone, seconds = datetime.now(UTC), time.monotonic() - started
    if not memory.await_release(free, RELEASE_SECONDS, shown):
        raise ProblemError("engine-unavailable", "the engine ended and its GPU memory is not back")
    return Ran(argv, _read(boot, result, ended, environment, answer), gone, seconds)


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


def _watch(engine: subprocess.Popen[bytes], reading: int, deadline: float, progress: Progress) -> int | None:
    """The exit status; None when the deadline passed."""
    while (status := engine.poll()) is None:
        if time.monotonic() > deadline:
            return None
        if select.select([reading], [], [], POLL_SECONDS)[0]:
            done = os.read(reading, 4096).split()
            progress(int(done[-1]))
    return status


def _clear(engine: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the engine: itself, its descendants, and every process of its session."""
    session = engine.pid
    if (root := process.find(engine.pid)) is not None and engine.poll() is None:
        process.kill_tree(root, KILL_SECONDS)
    engine.wait(KILL_SECONDS)
    for left in _session(session):
        process.kill_tree(left, KILL_SECONDS)


def _session(session: int) -> list[psutil.Process]:
    found = []
    for one in psutil.process_iter():
        try:
            if os.getsid(one.pid) == session:
                found.append(one)
        except ProcessLookupError:
            continue
    return found


def _read(boot: Files, result: Path, ended: int | None, environment: dict[str, str], model: type[A]) -> A:
    if ended != 0 or not result.is_file():
        error = EngineKilledError if ended is not None and ended < 0 else ProblemError
        raise error("boot-failed", f"the engine {_how(ended)}", _last_words(boot, environment))
    try:
        answer = model.model_validate_json(result.read_bytes())
    except ValidationError as error:
        raise ProblemError("boot-failed", "the engine's result cannot be read") from error
    if answer.problem is not None:
        raise ProblemError.from_problem(answer.problem)
    return answer


def _how(ended: int | None) -> str:
    if ended is None:
        return "ran past its deadline and was killed"
    return f"died of {signal.Signals(-ended).name}" if ended < 0 else f"ended with exit status {ended}"


def _last_words(boot: Files, environment: dict[str, str]) -> list[Offender]:
    """The end of standard error, secrets taken out."""
    redactor = Redactor(os.environ, environment)
    text = boot.stderr.read_bytes()[-16384:].decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [Offender(where="stderr", message=redactor.text(line)[:500]) for line in lines[-LINES:]]
