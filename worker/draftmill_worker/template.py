"""The warm template: a process that has imported what stages need and forks one child per stage.

`python -m draftmill_worker.template SOCKET STAGES_PACKAGE` serves one supervisor after another on a Unix socket of
packets. A supervisor connects, sends one request (and, for pull, a pipe with secrets that only the child reads), gets
`started`, then the reports of the stage itself, then `ended`, when no process of the stage is left. Closing the
connection, or its writing half, kills the stage: that happens by itself when the supervisor dies.

SIGTERM is passed on as `stopping`: the supervisor gives the stage its time to end, or kills it; then the template ends.

Nothing here may start a thread or touch CUDA, or a fork of it would be broken.
"""

import contextlib
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from draftmill_worker import pipeline, process, stage
from draftmill_worker.log import log_to_file, log_to_stderr

logger = logging.getLogger(__name__)

PACKET = 1 << 16
KILL_SECONDS = 10.0
# One thread for whatever a library starts at import; stages choose their own numbers after the fork.
THREAD_ENV = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
# Libraries ask at import whether there is a GPU. They are told no, and without a call of the driver.
NO_GPU_ENV = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
STAGES = tuple(name.value for name in pipeline.ORDER)
# Above the supervisor's, so that the kernel takes the stage when memory runs out.
STAGE_OOM_SCORE = "500"

Execute = Callable[[stage.StageRequest, stage.Send], object]


@contextlib.contextmanager
def _gpus_hidden() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in NO_GPU_ENV}
    os.environ.update(NO_GPU_ENV)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def preload(package: str) -> dict[str, stage.Run]:
    """Import the package of stages, what it lists in PRELOAD, and the stages; each one's `run` function by its name.

    CUDA stays untouched, so that forks can use the GPUs that this process does not see meanwhile.
    """
    with _gpus_hidden():
        stages = importlib.import_module(package)
        for name in stages.PRELOAD:
            importlib.import_module(name)
        runs: dict[str, stage.Run] = {name: importlib.import_module(f"{package}.{name}").run for name in STAGES}
        stages.warm()
    return runs


def _single_threaded() -> None:
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise RuntimeError(f"the template has {threads} threads; a fork of it would be broken")


def _sender(connection: socket.socket) -> stage.Send:
    def send(message: dict[str, Any]) -> None:
        # A supervisor that does not listen just now must not hold the stage up; the report is lost to it.
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            connection.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    return send


def _tell(connection: socket.socket, message: dict[str, Any]) -> None:
    """Unlike a report this waits for a slow supervisor; one that is gone does not matter."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.send(json.dumps(message).encode())


def _isolate(connection: socket.socket, keep: list[int], folder: Path, parent: int) -> None:
    """Make the fork a process of its own: session, signals, descriptors, output."""
    process.die_with_parent(parent)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    folder.mkdir(parents=True, exist_ok=True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(folder / "output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    os.dup2(output, 1)
    os.dup2(output, 2)
    kept = {0, 1, 2, connection.fileno(), *keep}
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor not in kept:
            # The one that listed the folder is closed by now.
            with contextlib.suppress(OSError):
                os.close(descriptor)
    Path("/proc/self/oom_score_adj").write_text(STAGE_OOM_SCORE)


def _take_secrets(pipe: int) -> None:
    with os.fdopen(pipe, "rb") as file:
        os.environ.update(json.loads(file.read()))


def _child(connection: socket.socket, request: Path, pipes: list[int], runs: dict[str, stage.Run], parent: int) -> None:
    _isolate(connection, pipes, request.parent, parent)
    log_to_file(request.parent / "log.jsonl")
    for pipe in pipes:
        _take_secrets(pipe)
    loaded = stage.load_request(request)
    stage.execute(runs[loaded.stage], loaded, request.with_name("result.json"), _sender(connection))


def _fork(connection: socket.socket, request: Path, pipes: list[int], runs: dict[str, stage.Run]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _child(connection, request, pipes, runs, parent)
        status = 0
    except BaseException:
        logger.exception("stage process failed")
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit: the template's cleanup is not the child's.
        os._exit(status)


def _await_end(connection: socket.socket, pid: int, stop: int) -> tuple[int, bool]:
    """The child's wait status, once it ended by itself or was killed because the supervisor left; whether killed."""
    child = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(child, select.POLLIN)
        poll.register(connection, select.POLLIN | select.POLLRDHUP)
        poll.register(stop, select.POLLIN)
        while (ready := {descriptor for descriptor, _ in poll.poll()}) == {stop}:
            _tell(connection, {"stopping": True})
            poll.unregister(stop)
        killed = child not in ready
        if killed:
            process.kill_tree(psutil.Process(pid), 0.0)
        return os.waitpid(pid, 0)[1], killed
    finally:
        os.close(child)


def _serve(connection: socket.socket, runs: dict[str, stage.Run], stop: int) -> None:
    packet, pipes, _, _ = socket.recv_fds(connection, PACKET, 1)
    if not packet:
        return
    request = Path(json.loads(packet)["request"])
    pid = _fork(connection, request, pipes, runs)
    for pipe in pipes:
        os.close(pipe)
    _tell(connection, {"started": pid})
    status, killed = _await_end(connection, pid, stop)
    strays = process.reap_children(KILL_SECONDS)
    ended = {"status": os.waitstatus_to_exitcode(status), "killed": killed, "strays": strays}
    _tell(connection, {"ended": ended})


def _stop_pipe() -> int:
    """A descriptor that can be read, and is never read, once SIGTERM has come."""
    reading, writing = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(writing, b"!") and None)
    return reading


def serve(listener: socket.socket, runs: dict[str, stage.Run], stop: int) -> None:
    """Until `stop` can be read and no stage runs."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(stop, select.POLLIN)
    while stop not in {descriptor for descriptor, _ in poll.poll()}:
        connection, _ = listener.accept()
        with connection:
            _serve(connection, runs, stop)
    logger.info("template stopped")


def main() -> None:
    path, package = sys.argv[1:]
    os.environ.update(THREAD_ENV)
    log_to_stderr()
    process.become_subreaper()
    runs = preload(package)
    _single_threaded()
    # Out of the collector's sight, so that a fork's collections do not copy these pages.
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        Path(path).unlink(missing_ok=True)
        listener.bind(path)
        listener.listen()
        stop = _stop_pipe()
        logger.info("template ready")
        serve(listener, runs, stop)


if __name__ == "__main__":
    main()
