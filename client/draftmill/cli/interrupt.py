"""Ctrl-C while modules load ends the command without a traceback of imports."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def _quit(*_: object) -> None:
    os._exit(130)


@contextmanager
def quiet_interrupt() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _quit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
