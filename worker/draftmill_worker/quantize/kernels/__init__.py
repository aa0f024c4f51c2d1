"""Loops over elements: numba on the CPU, torch where the tensors live on CUDA. Both give the same bytes."""

from draftmill_worker.quantize.kernels.rows import RowOps, Rows, row_ops

__all__ = ["RowOps", "Rows", "row_ops"]


def warm_up() -> None:
    """Loads or compiles every loop of the CPU path, for a process that forks workers. Starts no threads.

    About half a second from the disk cache, some seconds without it.
    """
    import numpy as np

    ops = row_ops("cpu")
    for stored, dtype in ((np.int16, "BF16"), (np.float32, "F32")):
        array = np.ones((2, 128), stored)
        array.flags.writeable = False
        rows = Rows(array, dtype, dtype)
        ops.amax(rows)
        ops.e4m3(rows, ops.row_amax(rows))
        ops.e2m1(rows, np.float32(1.0))
        ops.e2m1_searched(rows, np.float32(1.0))
        ops.mxfp8(rows)
        scales = ops.group_amax(rows)
        ops.e4m3_groups(rows, scales)
        ops.int_groups(rows, scales, 4)
    ops.amax(Rows(array, "F32", "BF16"))
