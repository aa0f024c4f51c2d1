"""A device's last engine must be gone before the next one boots on it, whoever may boot.

The ledger says whose a device is. Whether the engine of a lost claim runs on, because its worker stands still, only the
kernel knows. Engines without a service, as the canary's, take turns by this alone.
"""

import fcntl
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from draftmill_worker.stage import Reporter


@contextmanager
def turn(data_dir: Path, devices: Sequence[str], report: Reporter) -> Iterator[None]:
    """Wait for the devices' turn among the processes of this machine that share the data directory.

    The kernel ends the turn of a process that dies; its engine dies with it.
    """
    folder = data_dir / "cache"
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        # All in one order: two that need the same devices cannot each wait with one in hand.
        for device in sorted(devices):
            # Parts of a GPU may be named with slashes.
            path = folder / f"device-{socket.gethostname()}-{device.replace('/', '-')}.lock"
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            locks.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report.log("info", f"waiting for the engine that runs on {device}")
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
