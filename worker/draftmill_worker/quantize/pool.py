"""A bounded queue of work for a few threads, and the count of bytes done.

The threads call code that releases the GIL (numba's loops, pwrite); all bookkeeping is the calling thread's.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

# Calls handed out and not yet finished: bounds the bookkeeping's memory, whatever the checkpoint's size.
MAX_PENDING = 2048
MAX_THREADS = 16


class WorkPool:
    """Leaving the `with` block waits for the calls that run; an error drops those that do not yet."""

    def __init__(self, threads: int | None, total: int, progress: Callable[[int, int], None] | None) -> None:
        count = min(len(os.sched_getaffinity(0)), MAX_THREADS) if threads is None else threads
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="quantize")
        self._pending: deque[tuple[Future[Any], Callable[[Any], None] | None, int]] = deque()
        self._done, self._total, self._progress = 0, total, progress

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(wait=True, cancel_futures=error is not None)

    def submit(
        self, size: int, call: Callable[..., Any], *args: Any, then: Callable[[Any], None] | None = None
    ) -> Future[Any]:
        """Runs `call(*args)` in a thread. `then` gets its result in the calling thread; `size` bytes count as done."""
        self._settle(MAX_PENDING - 1)
        future = self._executor.submit(call, *args)
        self._pending.append((future, then, size))
        return future

    def finish(self) -> None:
        """Waits for everything submitted; raises what a call raised."""
        self._settle(0)

    def _settle(self, allowed: int) -> None:
        while len(self._pending) > allowed:
            future, then, size = self._pending.popleft()
            result = future.result()
            if then is not None:
                then(result)
            self._done += size
            if self._progress is not None and size:
                self._progress(self._done, self._total)


def spans(count: int, step: int) -> Iterator[tuple[int, int]]:
    """[first, last) pairs that cover `count` items by `step`, at least one at a time."""
    step = max(step, 1)
    for first in range(0, count, step):
        yield first, min(first + step, count)
