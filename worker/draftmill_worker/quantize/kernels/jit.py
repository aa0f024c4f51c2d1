"""How loops are compiled: to the disk cache, without the GIL, with IEEE arithmetic."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

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
