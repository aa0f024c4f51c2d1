"""Helpers shared by the tests."""

import time
from collections.abc import Callable
from typing import TypeVar

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
