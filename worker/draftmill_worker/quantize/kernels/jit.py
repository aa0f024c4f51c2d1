"""How loops are compiled: to the disk cache, without the GIL, with IEEE arithmetic."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numba


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Imports of a module that is not loaded yet fail."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


# numba loads SciPy for its BLAS, which no loop here calls: a third of the time until the first loop runs.
with _hidden("scipy.linalg"):
    import numba.np.arraymath

F = TypeVar("F", bound=Callable[..., Any])

# Never fastmath: bytes must equal the reference's. The numpy error model gives x/0 = inf instead of an exception.
# No parallel=True: threads are the caller's, and a forked stage process must find none of numba's.
OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": False}


def jit(function: F) -> F:
    """numba.njit with the disk cache (`__pycache__`, NUMBA_CACHE_DIR or the user's cache directory)."""
    try:
        compiled: F = numba.njit(**OPTIONS, cache=True)(function)
    except RuntimeError:
        # numba found no writable place; the loop is compiled once per process instead.
        compiled = numba.njit(**OPTIONS)(function)
    return compiled
