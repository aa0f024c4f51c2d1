"""The pack-quantized layout is compressed-tensors' own, word for word."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from draftmill_worker.quantize.formats import pack_quantized

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=40)


@st.composite
def codes(draw: st.DrawFn, bits: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]]:
    half = 1 << (bits - 1)
    return draw(hnp.arrays(np.int8, draw(SHAPES), elements=st.integers(-half, half - 1)))


@pytest.mark.parametrize("bits", pack_quantized.BITS)
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_words_are_the_librarys(bits: int, data: st.DataObject) -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32

    drawn = data.draw(codes(bits))
    theirs = pack_to_int32(torch.from_numpy(drawn), bits)
    ours = pack_quantized.pack(drawn, bits)
    assert ours.dtype == np.int32
    assert torch.equal(torch.from_numpy(ours), theirs)
    assert np.array_equal(pack_quantized.unpack(ours, bits, drawn.shape[1]), drawn)
    assert np.array_equal(unpack_from_int32(torch.from_numpy(ours), bits, torch.Size(drawn.shape)).numpy(), drawn)


def test_zeros_are_not_zero_words() -> None:
    zeros = np.zeros((1, 8), np.int8)
    assert pack_quantized.pack(zeros, 4).view(np.uint32).tolist() == [[0x88888888]]
    assert pack_quantized.pack(zeros, 8).view(np.uint32).tolist() == [[0x80808080, 0x80808080]]


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"lie in \[-8, 8\)"):
        pack_quantized.pack(np.full((1, 8), 8, np.int8), 4)
    with pytest.raises(ValueError, match="int8"):
        pack_quantized.pack(np.zeros((1, 8), np.int16), 4)
    with pytest.raises(ValueError, match="not 3"):
        pack_quantized.pack(np.zeros((1, 8), np.int8), 3)
