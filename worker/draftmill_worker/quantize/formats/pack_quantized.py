"""compressed-tensors' `pack-quantized` layout: signed integer codes in int32 words. numpy alone.

For whole drafters (int4_g128, int8_g128) and for heads that are quantized by other means. A weight [out, in] becomes

    weight_packed   int32 [out, ceil(in * bits / 32)]: 32/bits codes a word, the first in the lowest bits,
                    each stored as code + 2^(bits - 1); a row's unused high bits are zero
    weight_scale    [out, in/group], in the dtype that the engine computes in
    weight_shape    int64 [2]: out, in

as compressed-tensors 0.17 writes it (compressors/pack_quantized) and vLLM's CompressedTensorsWNA16 reads it.
Symmetric: a weight is code * scale, and there is no zero point.
"""

import numpy as np
from numpy.typing import NDArray

PACKED, SCALE, SHAPE = "weight_packed", "weight_scale", "weight_shape"
GROUP = 128
"""Columns that share a scale in Draftmill's formats."""
BITS = (4, 8)


def pack(codes: NDArray[np.int8], bits: int) -> NDArray[np.int32]:
    """Words [rows, ceil(columns * bits / 32)] of signed codes [rows, columns], each in [-2^(bits-1), 2^(bits-1)).

    ValueError for codes outside that range, another dtype or number of dimensions, or bits other than 4 and 8.
    """
    _check_bits(bits)
    if codes.dtype != np.int8 or codes.ndim != 2:
        raise ValueError(f"int8 [rows, columns] expected, not {codes.dtype} of {codes.ndim} dimensions")
    half = 1 << (bits - 1)
    if codes.size and (int(codes.min()) < -half or int(codes.max()) >= half):
        raise ValueError(f"codes of {bits} bits lie in [{-half}, {half})")
    unsigned = (codes.view(np.uint8) + np.uint8(half)).astype(np.uint8)
    per_word = 32 // bits
    words = -(-codes.shape[1] // per_word)
    padded = np.zeros((codes.shape[0], words * per_word), np.uint8)
    padded[:, : codes.shape[1]] = unsigned
    lanes = padded if bits == 8 else padded[:, 0::2] | (padded[:, 1::2] << np.uint8(4))
    return np.ascontiguousarray(lanes).view("<i4").astype(np.int32, copy=False)


def unpack(words: NDArray[np.int32], bits: int, columns: int) -> NDArray[np.int8]:
    """The signed codes [rows, columns] of `pack`'s words."""
    _check_bits(bits)
    lanes = np.ascontiguousarray(words.astype("<i4", copy=False)).view(np.uint8)
    if bits == 4:
        lanes = np.stack([lanes & np.uint8(0x0F), lanes >> np.uint8(4)], axis=-1).reshape(len(words), -1)
    half = 1 << (bits - 1)
    return (lanes[:, :columns] - np.uint8(half)).view(np.int8)


def stored_shape(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """What `weight_shape` holds."""
    return np.array(shape, np.int64)


def _check_bits(bits: int) -> None:
    if bits not in BITS:
        raise ValueError(f"{BITS} bits are packed here, not {bits}")
