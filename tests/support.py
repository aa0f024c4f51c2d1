"""Helpers shared by the tests."""

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")


def eventually(predicate: Callable[[], T], timeout: float = 10.0, interval: float = 0.02) -> T:
    """The first truthy value of `predicate()`; AssertionError when there is none within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s; last value {value!r}")
        time.sleep(interval)


def alive(pid: int) -> bool:
    """Whether the process runs. A dead one whose parent, here a subreaper under test, has not reaped does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
