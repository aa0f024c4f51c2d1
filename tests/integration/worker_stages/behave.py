"""How a test stage behaves: what a label named after the stage asks for, then its canned result."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftmill.choices import AUTO
from draftmill.digests import digest
from draftmill.jobs import RepoSource
from draftmill.problems import ProblemError
from draftmill.states import Stage
from draftmill_worker.stage import FailedError, Level, Reporter, Run, StageRequest, Unit

HERE = "here"
"""File of a stage that begins."""
DAEMON = "import os, signal; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); signal.pause()"


def hang() -> None:
    """Ignore what can be ignored, and stay."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    while True:
        signal.pause()


def _daemons() -> None:
    """Two processes that left: one in a session of its own, one orphaned from a session of its own."""
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    subprocess.run([sys.executable, "-c", DAEMON], check=True)


def _daemons_hang() -> None:
    _daemons()
    hang()


def _problem() -> None:
    raise ProblemError("shape-mismatch", "as the test wants")


def _gate() -> None:
    raise FailedError(ProblemError("gate-failed", "as the test wants").problem, {"summary": _summary()})


def _bug() -> None:
    raise KeyError("as the test wants")


def _full() -> None:
    raise OSError(errno.ENOSPC, "as the test wants")


def _progress(report: Reporter) -> None:
    for done in range(1001):
        report.progress(done, 1000, "tensors")
    report.log("warning", "a thousand of them")


def _token(report: Reporter) -> None:
    report.log("info", f"HF_TOKEN {'is' if 'HF_TOKEN' in os.environ else 'is not'} set")


def _secrets(report: Reporter) -> None:
    held = [name for name in ("DRAFTMILL_REDIS_URL", "HF_TOKEN") if name in os.environ]
    report.log("info", f"secrets: {', '.join(held)}")


def _flood(report: Reporter) -> None:
    for _ in range(20_000):
        report.log("info", "x" * 4000)


def _pause() -> None:
    """A second and a half of work."""
    signal.sigtimedwait({signal.SIGUSR1}, 1.5)


def _wait() -> None:
    """As a stage does that works: a signal to stop ends it."""
    while True:
        signal.pause()


def _told() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _until_let_go() -> None:
    signal.sigwait({signal.SIGUSR1})


def _engine_stopped() -> None:
    _until_let_go()
    raise ProblemError("boot-failed", "as the test wants")


def _children() -> None:
    """What an engine does, and a daemonic process may not."""
    child = multiprocessing.get_context("fork").Process(target=_pause)
    child.start()
    child.join()
    if child.exitcode != 0:
        raise ChildProcessError(child.exitcode)


ACTS: dict[str, Callable[[], object]] = {
    "": lambda: None,
    "hang": hang,
    "crash": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "pause": _pause,
    "wait": _wait,
    "told": _told,
    "until-let-go": _until_let_go,
    "engine-stopped": _engine_stopped,
    "children": _children,
    "daemons": _daemons,
    "daemons-hang": _daemons_hang,
    "problem": _problem,
    "gate": _gate,
    "bug": _bug,
    "full": _full,
}
REPORTS: dict[str, Callable[[Reporter], object]] = {
    "progress": _progress,
    "token": _token,
    "secrets": _secrets,
    "flood": _flood,
}


def behave(request: StageRequest, report: Reporter) -> None:
    # So that it waits to be waited for, however early it comes once the file is there.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    (request.folder / HERE).touch()
    act = request.spec.labels.get(request.stage.value, "")
    if act.endswith("-once") and request.attempt > 1:
        return
    act = act.removesuffix("-once")
    if act in REPORTS:
        REPORTS[act](report)
    else:
        ACTS[act]()


def _summary() -> dict[str, Any]:
    names = ("source_bytes", "variant_bytes", "tensors_quantized", "tensors_kept")
    checks = ("checks_passed", "checks_warned", "checks_failed")
    return dict.fromkeys((*names, *checks), 1)


def _canned(request: StageRequest) -> dict[str, Any]:
    resolved = {
        "source": {"repo": "a/b", "commit": "0" * 40, "manifest_sha256": digest("m")},
        "format": "fp8" if request.spec.format == AUTO else request.spec.format,
        "quantize": request.spec.quantize.model_dump(mode="json"),
        "family": "eagle3",
        "quantizer": "q",
        "variant": digest("v"),
    }
    cached = request.spec.labels.get("cached") == "yes"
    return {"resolved_spec": resolved, "cached": cached, "summary": _summary(), "stage": request.stage.value}


def small() -> Run:
    def run(request: StageRequest, report: Reporter) -> dict[str, Any]:
        behave(request, report)
        return _canned(request)

    return run


def _hold(request: StageRequest) -> None:
    (request.folder / "held").touch()
    hang()


class _Holding:
    """Passes nothing on: the stage stops at its first report of progress."""

    def __init__(self, request: StageRequest) -> None:
        self._request = request

    def progress(self, done: int, total: int, unit: Unit) -> None:
        _hold(self._request)

    def log(self, level: Level, message: str) -> None:
        return


def _meddle(request: StageRequest) -> None:
    """What a label "meddle" asks for, before the stage of this name runs."""
    match (request.spec.labels.get("meddle"), request.stage):
        case ("with the variant", Stage.VERIFY):
            config = request.variant / "config.json"
            config.write_text(config.read_text().replace('"FP8"', '"NVFP4"'))
        case ("with the source", Stage.SEAL):
            source = Path(request.previous[Stage.PULL]["folder"])
            os.utime(next(source.glob("*.safetensors")))


def _meant(request: StageRequest) -> bool:
    """Whether a label that holds one item of a batch, by repository and format, is about this job."""
    spec = request.spec
    item = spec.labels.get("hold_item")
    return item is None or (isinstance(spec.source, RepoSource) and item == f"{spec.source.repo} {spec.format}")


def held(run: Run) -> Run:
    def hold(request: StageRequest, report: Reporter) -> dict[str, Any]:
        _meddle(request)
        stage, _, moment = request.spec.labels.get("hold", "").partition(":")
        if stage != request.stage.value or request.attempt > 1 or not _meant(request):
            return run(request, report)
        if moment == "before":
            _hold(request)
        value = run(request, _Holding(request) if moment == "during" else report)
        _hold(request)
        return value

    return hold
