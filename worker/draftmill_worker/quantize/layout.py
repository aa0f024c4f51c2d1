"""Where each tensor of an output file lies, known before its first byte is computed."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

from draftmill.plans import OutputTensor
from draftmill_worker.checkpoint.headers import DTYPE_BYTES

# The library's own order of dtypes (safetensors/src/tensor.rs, enum Dtype); it writes the largest first.
_ORDER = (
    "BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "F64",
    "I64", "U64",
)  # fmt: skip
_RANK = {dtype: rank for rank, dtype in enumerate(_ORDER)}


@dataclass(frozen=True, slots=True)
class Layout:
    header: bytes
    """The file's first bytes: length, JSON, padding to a multiple of eight."""
    starts: dict[str, int]
    """Absolute byte offset of each tensor."""
    size: int
    """Bytes of the whole file."""


def layout(tensors: Iterable[OutputTensor]) -> Layout:
    """The file `safetensors.torch.save_file(tensors, metadata={"format": "pt"})` would write, byte for byte.

    Sorted by dtype, largest first, then by name: each tensor is aligned to its element size.
    """
    ordered = sorted(tensors, key=lambda tensor: (-_RANK[tensor.dtype], tensor.name))
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    spans: dict[str, int] = {}
    position = 0
    for tensor in ordered:
        end = position + nbytes(tensor)
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
        spans[tensor.name] = position
        position = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return Layout(header, {name: len(header) + start for name, start in spans.items()}, len(header) + position)


def nbytes(tensor: OutputTensor) -> int:
    return math.prod(tensor.shape) * DTYPE_BYTES[tensor.dtype]
