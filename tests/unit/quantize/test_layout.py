"""The files we lay out are those the safetensors library writes, byte for byte."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from draftmill.plans import OutputTensor
from draftmill_worker.checkpoint.headers import DTYPE_BYTES, read_header
from draftmill_worker.quantize.layout import layout

TORCH = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
names = st.lists(st.text('ab.é"\\0', min_size=1, max_size=6), min_size=1, max_size=8, unique=True)


def test_every_dtype_that_is_read_can_be_laid_out() -> None:
    assert TORCH.keys() == DTYPE_BYTES.keys()


@given(names=names, data=st.data())
@settings(deadline=None, max_examples=200)
def test_header_and_offsets_are_the_librarys(names: list[str], data: st.DataObject) -> None:
    outputs, tensors = [], {}
    for name in names:
        dtype = data.draw(st.sampled_from(sorted(TORCH)))
        shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
        outputs.append(OutputTensor(name=name, dtype=dtype, shape=shape))
        tensors[name] = torch.zeros(shape, dtype=TORCH[dtype])
    ours, theirs = layout(outputs), save(tensors, metadata={"format": "pt"})
    assert theirs.startswith(ours.header)
    assert ours.size == len(theirs)
    assert len(ours.header) % 8 == 0


def test_starts_are_where_readers_look(tmp_path: Path) -> None:
    outputs = [
        OutputTensor(name="a", dtype="U8", shape=(3,)),
        OutputTensor(name="b", dtype="F32", shape=()),
        OutputTensor(name="c", dtype="BF16", shape=(5, 2)),
    ]
    made = layout(outputs)
    path = tmp_path / "model.safetensors"
    path.write_bytes(made.header + bytes(made.size - len(made.header)))
    assert {name: info.start for name, info in read_header(path).items()} == made.starts


def test_an_unknown_dtype_is_no_tensor() -> None:
    with pytest.raises(KeyError):
        layout([OutputTensor(name="a", dtype="C64", shape=(1,))])
