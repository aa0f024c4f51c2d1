"""What exactly is wrong with a weight that cannot be quantized."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftmill.problems import Offender
from draftmill_worker.checkpoint.headers import TensorInfo
from draftmill_worker.quantize.kernels.casts import cast, to_float32
from draftmill_worker.quantize.reader import WeightReader, itemsize

_CHUNK = 1 << 20
_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def nonfinite_offender(reader: WeightReader, info: TensorInfo, target: str) -> Offender:
    """Counts of NaN and Inf, and of finite values that overflow the dtype they are cast to."""
    nan = inf = overflow = 0
    elements = info.nbytes // itemsize(info)
    for first in range(0, elements, _CHUNK):
        stored = reader.elements(info, first, min(first + _CHUNK, elements))
        values = _widest(stored, info.dtype)
        nan += int(np.isnan(values).sum())
        inf += int(np.isinf(values).sum())
        overflow += int((np.isfinite(values) & ~np.isfinite(_after(stored, info.dtype, target))).sum())
    counts = ((nan, "NaN"), (inf, "Inf"), (overflow, f"too large for {_NAMES[target]}"))
    parts = [f"{count} {what}" for count, what in counts if count]
    return Offender(where=info.name, message=f"of {elements} values: {', '.join(parts)}", value=nan + inf + overflow)


def _widest(stored: NDArray[Any], dtype: str) -> NDArray[Any]:
    return stored if dtype == "F64" else to_float32(stored, dtype)


def _after(stored: NDArray[Any], dtype: str, target: str) -> NDArray[np.float32]:
    return to_float32(stored, dtype) if target == "F32" else to_float32(cast(stored, dtype, target), target)
