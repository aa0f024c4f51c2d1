"""safetensors headers: names, dtypes, shapes and places of tensors, without their bytes.

The format is eight bytes of little-endian header length N, N bytes of JSON, then the tensors' bytes without holes:
https://github.com/huggingface/safetensors#format
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.config import decode

DTYPE_BYTES: dict[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
FLOAT_DTYPES = frozenset({"F16", "BF16", "F32", "F64"})
"""What a cast may change. The eight-bit floats are quantized data already."""

# The library itself reads headers up to 100 MB; a drafter of ten thousand tensors needs about 2 MB.
MAX_HEADER_BYTES = 16 << 20
MAX_NAME_LENGTH = 512
MAX_RANK = 8
LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    dtype: str
    """safetensors dtype name: BF16, F32, I64, BOOL, F8_E4M3 and so on."""
    shape: tuple[int, ...]
    file: str
    """Weight file, relative to the checkpoint folder."""
    start: int
    end: int
    """Absolute byte offsets in the file: the header is counted in."""

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def header_length(first8: bytes, file: str, file_size: int) -> int:
    """Bytes of JSON that follow the first eight, checked against the file's size and our own bound."""
    if len(first8) < LENGTH_BYTES or file_size < LENGTH_BYTES:
        raise malformed(file, f"{file_size} bytes are too few for a header")
    length = int.from_bytes(first8[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise malformed(file, f"the header claims {length} bytes; at most {MAX_HEADER_BYTES} are read")
    if length > file_size - LENGTH_BYTES:
        raise malformed(file, f"the header claims {length} bytes, the file has {file_size}")
    return length


def parse_header(data: bytes, file: str, file_size: int) -> dict[str, TensorInfo]:
    """Tensors of a file by name, in the order of their bytes. `data` starts at byte 0 and holds the whole header.

    Raises `malformed-safetensors`, with every bad entry, wherever the safetensors library would refuse the file.
    """
    length = header_length(data, file, file_size)
    if len(data) < LENGTH_BYTES + length:
        raise malformed(file, f"the header is cut: {len(data)} of {LENGTH_BYTES + length} bytes")
    raw = decode(data[LENGTH_BYTES : LENGTH_BYTES + length], file, "malformed-safetensors", MAX_HEADER_BYTES, 4)
    if not isinstance(raw, dict):
        raise malformed(file, "the header is not a JSON object")
    return _tensors(raw, file, LENGTH_BYTES + length, file_size)


def read_header(path: Path, file: str | None = None) -> dict[str, TensorInfo]:
    """`parse_header` of a file on disk; `file` is the name to record, the path's last part by default."""
    name = file or path.name
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        first8 = stream.read(LENGTH_BYTES)
        return parse_header(first8 + stream.read(header_length(first8, name, size)), name, size)


def _tensors(raw: dict[str, Any], file: str, base: int, file_size: int) -> dict[str, TensorInfo]:
    offenders = _metadata_offenders(raw.pop("__metadata__", {}), file)
    tensors: list[TensorInfo] = []
    for name, entry in raw.items():
        message = _entry_fault(name, entry)
        if message is None:
            start, end = entry["data_offsets"]
            tensors.append(TensorInfo(name, entry["dtype"], tuple(entry["shape"]), file, base + start, base + end))
        else:
            offenders.append(Offender(where=f"{file}: {name[:MAX_NAME_LENGTH]}", message=message))
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    offenders += _hole_offenders(tensors, base, file_size) if not offenders else []
    if offenders:
        raise ProblemError("malformed-safetensors", f"{file}: {offenders[0].message}", offenders)
    return {tensor.name: tensor for tensor in tensors}


def _metadata_offenders(metadata: Any, file: str) -> list[Offender]:
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        return []
    return [Offender(where=f"{file}: __metadata__", message="metadata must map strings to strings")]


def _entry_fault(name: str, entry: Any) -> str | None:
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        return f"a tensor's name is 1 to {MAX_NAME_LENGTH} printable characters"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        return "an entry has dtype, shape and data_offsets, and nothing else"
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        return f"the dtype {str(dtype)[:32]!r} is not read"
    return _span_fault(dtype, shape, offsets)


def _span_fault(dtype: str, shape: Any, offsets: Any) -> str | None:
    if not _naturals(shape) or len(shape) > MAX_RANK:
        return f"the shape is not a list of at most {MAX_RANK} natural numbers"
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return "data_offsets is not a pair of ascending natural numbers"
    size = math.prod(shape) * DTYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != size:
        return f"{dtype} {shape} takes {size} bytes, data_offsets span {offsets[1] - offsets[0]}"
    return None


def _naturals(value: Any) -> bool:
    # bool is an int to Python; sizes above 2**63 are no sizes.
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _hole_offenders(tensors: list[TensorInfo], base: int, file_size: int) -> list[Offender]:
    offenders = []
    position = base
    for tensor in tensors:
        if tensor.start != position:
            what = "overlap" if tensor.start < position else "leave a hole before"
            offenders.append(Offender(where=f"{tensor.file}: {tensor.name}", message=f"bytes {what} this tensor"))
        position = max(position, tensor.end)
    if position != file_size:
        where = tensors[-1].file if tensors else ""
        offenders.append(Offender(where=where, message=f"tensors end at byte {position}, the file at {file_size}"))
    return offenders


def malformed(file: str, message: str) -> ProblemError:
    return ProblemError("malformed-safetensors", f"{file}: {message}", [Offender(where=file, message=message)])
