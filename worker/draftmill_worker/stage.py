"""What a stage is given and what it gives back: request.json in, result.json out, reports on the way."""

import contextlib
import errno
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field

from draftmill._model import Model
from draftmill.jobs import JobSpec, Progress
from draftmill.problems import Problem, ProblemError
from draftmill.states import Stage
from draftmill_worker.files import write_atomic
from draftmill_worker.log import log_to_file
from draftmill_worker.settings import StageSettings

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 0.2
MESSAGE_CHARS = 4000
Level = Literal["info", "warning", "error"]
Unit = Literal["bytes", "tensors", "files", "checks", "prompts", "variants"]


class StageRequest(Model):
    job: str
    attempt: int
    stage: Stage
    data_dir: Path
    spec: JobSpec
    previous: dict[Stage, dict[str, Any]] = Field(default_factory=dict)
    """What the stages before this one gave back, in this attempt."""
    settings: StageSettings = StageSettings()
    devices: tuple[str, ...] = ()
    """What the stage has to itself, by claim."""

    @property
    def folder(self) -> Path:
        """Where request.json, result.json and log.jsonl of this stage lie."""
        return stage_folder(self.data_dir, self.job, self.attempt, self.stage)

    @property
    def scratch(self) -> Path:
        """Folder of the attempt, gone after it."""
        return self.data_dir / "jobs" / self.job / str(self.attempt) / "scratch"

    @property
    def variant(self) -> Path:
        """The variant in the making; sealing moves it into the store."""
        return self.scratch / "variant"


def stage_folder(data_dir: Path, job: str, attempt: int, stage: Stage) -> Path:
    return data_dir / "jobs" / job / str(attempt) / stage.value


class FailedError(Exception):
    """A stage that failed, and still has something to give back."""

    def __init__(self, problem: Problem, value: dict[str, Any]) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.value = value


class StageResult(Model):
    value: dict[str, Any] = Field(default_factory=dict)
    problem: Problem | None = None
    """Why the stage failed; None when it went well."""
    seconds: float


class Reporter(Protocol):
    def progress(self, done: int, total: int, unit: Unit) -> None: ...

    def log(self, level: Level, message: str) -> None: ...


Run = Callable[[StageRequest, Reporter], dict[str, Any]]
Send = Callable[[dict[str, Any]], None]


class SendingReporter:
    """Passes reports on as messages, progress at most five times a second, beside its first and last value."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._last = float("-inf")

    def progress(self, done: int, total: int, unit: Unit) -> None:
        now = time.monotonic()
        if done < total and now - self._last < PROGRESS_SECONDS:
            return
        self._last = now
        self._send({"progress": Progress(done=done, total=total, unit=unit).model_dump(mode="json")})

    def log(self, level: Level, message: str) -> None:
        logger.log(logging.getLevelName(level.upper()), message)
        self._send({"log": {"level": level, "message": message[:MESSAGE_CHARS]}})


def _problem(error: OSError) -> Problem:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ProblemError("disk-budget", "the disk is full").problem
    return ProblemError("internal", f"the stage failed: {type(error).__name__}").problem


def execute(run: Run, request: StageRequest, result_path: Path, send: Send) -> StageResult:
    """Run a stage and write its result, also when it fails. Any exception is an answer: nothing is raised."""
    started = time.monotonic()
    value: dict[str, Any] = {}
    problem: Problem | None = None
    try:
        value = run(request, SendingReporter(send))
    except ProblemError as error:
        problem = error.problem
        logger.warning("%s", error)
    except FailedError as error:
        value, problem = error.value, error.problem
        logger.warning("%s", error)
    except OSError as error:
        problem = _problem(error)
        logger.exception("stage %s failed", request.stage)
    except Exception as error:
        problem = ProblemError("internal", f"the stage failed: {type(error).__name__}").problem
        logger.exception("stage %s failed", request.stage)
    result = StageResult(value=value, problem=problem, seconds=time.monotonic() - started)
    write_atomic(result_path, result.model_dump_json().encode())
    return result


def load_request(path: Path) -> StageRequest:
    return StageRequest.model_validate_json(path.read_bytes())


def main(run: Run) -> None:
    """`python -m draftmill_worker.stages.<name> REQUEST RESULT`: one stage by hand, reports on standard output."""
    request, result_path = load_request(Path(sys.argv[1])), Path(sys.argv[2])
    request.folder.mkdir(parents=True, exist_ok=True)
    log_to_file(request.folder / "log.jsonl")

    def send(message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(json.dumps(message) + os.linesep)

    raise SystemExit(1 if execute(run, request, result_path, send).problem else 0)
