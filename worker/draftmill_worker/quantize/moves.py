"""Tensors that are not quantized: copied byte for byte, or cast."""

import threading

from draftmill.plans import TensorPlan
from draftmill_worker.quantize.files import Files
from draftmill_worker.quantize.pool import WorkPool, spans
from draftmill_worker.quantize.reader import itemsize

CHUNK_BYTES = 1 << 22
_own = threading.local()


def copy(files: Files, pool: WorkPool, tensor: TensorPlan) -> None:
    for first, last in spans(files.info(tensor).nbytes, CHUNK_BYTES):
        pool.submit(last - first, _copy_span, files, tensor, first, last)


def _copy_span(files: Files, tensor: TensorPlan, first: int, last: int) -> None:
    # Through a buffer that stays in the cache: a write from the mapping faults page by page, ten times slower, and
    # copy_file_range hands single pages through a pipe.
    files.put(tensor, tensor.name, first, files.read(tensor, first, _buffer(last - first)))


def _buffer(size: int) -> memoryview:
    """This thread's own, of `size` bytes."""
    if not hasattr(_own, "buffer"):
        _own.buffer = memoryview(bytearray(CHUNK_BYTES))
    buffer: memoryview = _own.buffer[:size]
    return buffer


def cast(files: Files, pool: WorkPool, tensor: TensorPlan, nonfinite: set[str]) -> None:
    """Adds the tensor's name to `nonfinite` when a cast value is NaN or Inf."""

    def note(finite: bool) -> None:
        if not finite:
            nonfinite.add(tensor.name)

    size = itemsize(files.info(tensor))
    for first, last in spans(files.info(tensor).nbytes // size, CHUNK_BYTES // size):
        pool.submit((last - first) * size, _cast_span, files, tensor, first, last, then=note)


def _cast_span(files: Files, tensor: TensorPlan, first: int, last: int) -> bool:
    # Here, not at the top: loading the compiled loops must not hold up the copies.
    from draftmill_worker.quantize.kernels.casts import cast as cast_values
    from draftmill_worker.quantize.kernels.casts import finite

    info, target = files.info(tensor), tensor.outputs[0].dtype
    values = cast_values(files.elements(tensor, first, last), info.dtype, target)
    files.put(tensor, tensor.name, first * values.itemsize, values)
    return finite(values, target)
