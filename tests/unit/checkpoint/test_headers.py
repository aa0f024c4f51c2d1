import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file

from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.headers import (
    DTYPE_BYTES,
    MAX_HEADER_BYTES,
    TensorInfo,
    header_length,
    parse_header,
    read_header,
)
from tests.unit.checkpoint.layouts import DTYPES

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
TENSORS = st.dictionaries(
    NAMES, st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=3)), max_size=6
)
TINY = save({"a": torch.arange(6, dtype=torch.int32).reshape(2, 3), "b.weight": torch.ones(4, dtype=torch.bfloat16)})


def _file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def _refused(data: bytes) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        parse_header(data, "model.safetensors", len(data))
    assert caught.value.problem.slug == "malformed-safetensors"
    return caught.value


@given(TENSORS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reads_what_the_library_writes(tmp_path: Path, shapes: dict[str, tuple[str, list[int]]]) -> None:
    tensors = {name: torch.zeros(shape, dtype=DTYPES[dtype]) for name, (dtype, shape) in shapes.items()}
    path = tmp_path / "x.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    found = read_header(path)
    assert {name: (info.dtype, list(info.shape)) for name, info in found.items()} == shapes
    content = path.read_bytes()
    for info in found.values():
        assert info.nbytes == tensors[info.name].nbytes
        assert info.file == "x.safetensors"
        assert content[info.start : info.end] == bytes(info.nbytes)


def test_offsets_are_absolute() -> None:
    found = parse_header(TINY, "f", len(TINY))
    values = struct.unpack("<6i", TINY[found["a"].start : found["a"].end])
    assert values == tuple(range(6))


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_corruption_is_refused_or_read_as_the_library_reads_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever the bytes, the answer is ProblemError or a header that the library accepts as well."""
    content = bytearray(TINY)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))]) if data.draw(st.booleans()) else bytes(content)
    try:
        found = parse_header(cut, "f", len(cut))
    except ProblemError as error:
        assert error.problem.slug == "malformed-safetensors"  # noqa: PT017
        return
    path = tmp_path_factory.mktemp("corrupt") / "f.safetensors"
    path.write_bytes(cut)
    with safe_open(path, "pt") as opened:
        assert set(opened.keys()) == set(found)
        assert all(opened.get_slice(name).get_shape() == list(info.shape) for name, info in found.items())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=12,
    )
)
@settings(max_examples=200, deadline=None)
def test_any_json_in_the_header_is_refused_or_read(value: Any) -> None:
    data = _file(value)
    try:
        found = parse_header(data, "f", len(data))
    except ProblemError as error:
        assert error.problem.slug == "malformed-safetensors"  # noqa: PT017
    else:
        assert found == {}


HOSTILE = {
    "length beyond the file": struct.pack("<Q", 1000) + b"{}",
    "length beyond the bound": struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}",
    "length of 2**64-1": struct.pack("<Q", 2**64 - 1) + b"{}",
    "empty file": b"",
    "no JSON": _file(b"\xff\xfe"),
    "deep": _file(b"[" * 200_000),
    "deep and closed": _file(b"[" * 500 + b"]" * 500),
    "name twice": _file(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"x",
    ),
    "half a surrogate": _file(b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    "number of 5000 digits": _file(b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,1]}}', b"x"),
    "unknown dtype": _file({"a": _entry("F7")}, bytes(4)),
    "dtype of another type": _file({"a": _entry() | {"dtype": ["F32"]}}, bytes(4)),
    "negative dimension": _file({"a": _entry(shape=[-1, -1])}, bytes(4)),
    "dimension true": _file({"a": _entry(shape=[True])}, bytes(4)),
    "fractional offset": _file({"a": _entry(offsets=[0, 4.0])}, bytes(4)),
    "descending offsets": _file({"a": _entry(offsets=[4, 0])}, bytes(4)),
    "size overflow": _file({"a": _entry(shape=[2**40, 2**40])}, bytes(4)),
    "rank 9": _file({"a": _entry(shape=[1] * 9)}, bytes(4)),
    "hole": _file({"a": _entry(), "b": _entry(offsets=[8, 12])}, bytes(12)),
    "overlap": _file({"a": _entry(), "b": _entry(offsets=[2, 6])}, bytes(6)),
    "bytes after the last tensor": _file({"a": _entry()}, bytes(5)),
    "bytes missing": _file({"a": _entry()}, bytes(3)),
    "extra key": _file({"a": _entry() | {"more": 1}}, bytes(4)),
    "metadata of numbers": _file({"__metadata__": {"a": 1}}),
    "metadata list": _file({"__metadata__": []}),
    "empty name": _file({"": _entry()}, bytes(4)),
    "control character in a name": _file({"a\x00b": _entry()}, bytes(4)),
    "name too long": _file({"a" * 513: _entry()}, bytes(4)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_headers_are_refused(data: bytes) -> None:
    _refused(data)


def test_every_bad_entry_is_listed() -> None:
    error = _refused(_file({"a": _entry("F7"), "good": _entry(), "b": _entry(shape=[2])}, bytes(4)))
    assert [offender.where for offender in error.problem.offenders] == ["model.safetensors: a", "model.safetensors: b"]


def test_a_length_beyond_the_bound_is_refused_before_reading() -> None:
    with pytest.raises(ProblemError, match="at most"):
        header_length(struct.pack("<Q", MAX_HEADER_BYTES + 1), "f", 1 << 40)


def test_the_library_refuses_holes_too(tmp_path: Path) -> None:
    path = tmp_path / "hole.safetensors"
    path.write_bytes(HOSTILE["hole"])
    with pytest.raises(SafetensorError), safe_open(path, "pt"):
        pass


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_dtype_sizes_are_torchs(dtype: str) -> None:
    assert DTYPE_BYTES[dtype] == torch.empty(0, dtype=DTYPES[dtype]).element_size()


def test_tensor_info_counts_bytes() -> None:
    assert TensorInfo("a", "F32", (2,), "f", 100, 108).nbytes == 8
