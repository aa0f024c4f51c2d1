"""The interface between schemes and loops: rows of a weight in, codes and scales out."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

STORED: dict[str, type[np.generic]] = {"BF16": np.int16, "F16": np.float16, "F32": np.float32, "F64": np.float64}
"""numpy's view of a floating safetensors dtype; bfloat16, which numpy lacks, as bit patterns."""

TINY = {"BF16": np.float32(2.0**-126), "F16": np.float32(2.0**-14), "F32": np.float32(2.0**-126)}
"""Smallest normal number of each dtype a weight can be cast to."""

GROUP = 128
"""Columns that share a scale in fp8_pb_wo and in the integer formats."""
MX_BLOCK = 32
"""Columns that share an E8M0 scale (OCP microscaling formats, 1.0)."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows of one weight as stored, and the dtype they are cast to before anything else."""

    stored: NDArray[Any]
    """[rows, columns], of `STORED[dtype]`."""
    dtype: str
    cast: str
    """BF16, F16 or F32: amax and scales are those of the cast values."""


@dataclass(frozen=True, slots=True)
class SquaredErrors:
    """Sums over some rows of a weight, float64."""

    found: float
    """||Q(w) - w||^2 with the scales that were searched."""
    plain: float
    """The same with the scales of plain max."""
    weight: float
    """||w||^2."""

    def __add__(self, other: "SquaredErrors") -> "SquaredErrors":
        return SquaredErrors(self.found + other.found, self.plain + other.plain, self.weight + other.weight)


class RowOps(Protocol):
    """What a device does to rows. Every implementation gives the same bytes."""

    @property
    def chunk_bytes(self) -> int:
        """How many bytes of a weight to hand over at a time."""
        ...

    def amax(self, rows: Rows) -> np.float32:
        """Largest magnitude after the cast; Inf or NaN when a value is not finite."""
        ...

    def row_amax(self, rows: Rows) -> NDArray[np.float32]:
        """The same for each row: float32 [rows]."""
        ...

    def e4m3(self, rows: Rows, scales: NDArray[np.float32]) -> NDArray[np.uint8]:
        """E4M3 codes [rows, columns] of value / scale; `scales` has one element, or one per row."""
        ...

    def e2m1(self, rows: Rows, scale_2: np.float32) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int]:
        """Packed E2M1 codes [rows, columns/2], E4M3 block scales [rows, columns/16], number of all-zero blocks."""
        ...

    def e2m1_searched(
        self, rows: Rows, scale_2: np.float32
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int, SquaredErrors]:
        """`e2m1` with the block scales of least squared error, and what that gained."""
        ...

    def mxfp8(self, rows: Rows) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int, bool]:
        """E4M3 codes [rows, columns], E8M0 scales [rows, columns/32], number of all-zero blocks, if all is finite."""
        ...

    def group_amax(self, rows: Rows) -> NDArray[np.float32]:
        """Largest magnitude per 128 columns: float32 [rows, columns/128]; Inf or NaN where a value is not finite."""
        ...

    def e4m3_groups(self, rows: Rows, scales: NDArray[np.float32]) -> NDArray[np.uint8]:
        """E4M3 codes [rows, columns] of value / scale, with a scale per 128 columns: [rows, columns/128]."""
        ...

    def int_groups(self, rows: Rows, scales: NDArray[np.float32], bits: int) -> NDArray[np.uint8]:
        """Integer codes of 4 or 8 `bits`, each plus 2^(bits - 1), the first in the lowest bits: uint8
        [rows, columns * bits / 8]. A code is value / scale in float32, to nearest even, saturated; scales as above."""
        ...


def work_dtype(stored: str, dtype: str) -> str:
    """The dtype a weight is quantized in: `stored`'s own when `dtype` is `keep`. float64 counts as float32."""
    if dtype == "keep":
        return "F32" if stored == "F64" else stored
    return {"bfloat16": "BF16", "float16": "F16"}[dtype]


def row_ops(device: str) -> RowOps:
    """Imports what the device needs: numba for `cpu`, torch for `cuda` and for `torch`, its CPU twin in tests."""
    if device == "cpu":
        from draftmill_worker.quantize.kernels.cpu import CpuOps

        return CpuOps()
    from draftmill_worker.quantize.kernels.torch_ops import TorchOps

    return TorchOps("cpu" if device == "torch" else device)
