"""Where ModelOpt crashes or stores NaN, and what we do instead. docs/numerics.md lists these cases."""

import pytest
import torch

from draftmill.formats import FORMATS, Format
from draftmill_worker.quantize.dequantize import dequantize
from draftmill_worker.quantize.formats import scheme_for
from draftmill_worker.quantize.kernels import Rows, row_ops
from draftmill_worker.quantize.kernels.rows import TINY
from tests.unit.quantize.modelopt_reference import BITS, modelopt_tensors, quantized_linears
from tests.unit.quantize.weights import as_rows, packed, same_bytes

NVFP4 = (Format.NVFP4, Format.W4A16_NVFP4)
FP8 = (Format.FP8, Format.FP8_PC_PT)
BLOCKS = (Format.FP8_PB_WO, Format.INT4_G128, Format.INT8_G128)


@pytest.mark.parametrize("format", NVFP4)
def test_an_all_zero_weight_has_no_nvfp4_scale(format: Format) -> None:
    """ModelOpt stores NaN block scales; our scale of zero is what `stream` refuses as all-zero-weight."""
    weight = torch.zeros(2, 32, dtype=torch.bfloat16)
    [theirs] = modelopt_tensors([weight], format, fuse=False)
    assert theirs["weight_scale"].float().isnan().all()
    scheme = scheme_for(format)
    assert scheme.scalars(row_ops("cpu").amax(_rows(weight)), TINY["BF16"])["weight_scale_2"] == 0


def test_an_all_zero_weight_is_stored_in_mxfp8() -> None:
    """The smallest scale, 2^-127, and codes 0, as ModelOpt does; so is every block that is all zero."""
    weight = torch.zeros(3, 64, dtype=torch.bfloat16)
    weight[1, 40] = 1.0
    [theirs] = modelopt_tensors([weight], Format.MXFP8, fuse=False)
    for device in ("cpu", "torch"):
        ours = packed(weight, Format.MXFP8, "BF16", row_ops(device))
        assert all(same_bytes(ours[name], theirs[name]) for name in theirs)
        assert ours["weight_scale"].tolist() == [[0, 0], [0, 119], [0, 0]]
        assert dequantize(Format.MXFP8, ours)[0].eq(0).all()
        assert scheme_for(Format.MXFP8).pack(row_ops(device), _rows(weight), {}).zeros == 5


@pytest.mark.parametrize("format", FP8)
def test_an_all_zero_weight_is_stored_in_fp8(format: Format) -> None:
    """Scale 1 and codes 0, as ModelOpt does."""
    weight = torch.zeros(3, 32, dtype=torch.bfloat16)
    [theirs] = modelopt_tensors([weight], format, fuse=False)
    ours = packed(weight, format, "BF16", row_ops("cpu"))
    assert all(same_bytes(ours[name], theirs[name]) for name in theirs)
    assert ours["weight_scale"].eq(1).all()
    assert ours["weight"].view(torch.uint8).eq(0).all()


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_seen(format: Format, value: float) -> None:
    weight = torch.ones(4, 128, dtype=torch.bfloat16)
    weight[2, 5] = value
    if format in BITS:
        # The library does not look either: NaN gives a scale of NaN, Inf the largest one.
        [theirs] = modelopt_tensors([weight], format, fuse=False)
        assert not theirs["weight_scale"][2, 0] < 1e38
    elif format is Format.MXFP8:
        # ModelOpt does not look: it stores a scale that the value did not make, or one for Inf.
        [theirs] = modelopt_tensors([weight], format, fuse=False)
        assert theirs["weight_scale"][2, 0] == (0 if value != value else 254)
    else:
        with pytest.raises(AssertionError, match=r"nan|inf"):
            modelopt_tensors([weight], format, fuse=False)
    for device in ("cpu", "torch"):
        ops = row_ops(device)
        assert not bool(torch.tensor(float(ops.amax(_rows(weight)))).isfinite())
        if not scheme_for(format).whole_tensor_amax:
            packed_rows = scheme_for(format).pack(ops, _rows(weight), {})
            assert not packed_rows.finite
            assert not packed_rows.arrays


@pytest.mark.parametrize(
    ("format", "columns"),
    [
        *((format, n) for format in NVFP4 for n in (8, 24, 17)),
        *((Format.MXFP8, n) for n in (16, 48)),
        *((format, n) for format in BLOCKS for n in (64, 200)),
    ],
)
def test_columns_that_do_not_divide_are_refused(format: Format, columns: int) -> None:
    assert f"{FORMATS[format].in_multiple} does not divide" in str(scheme_for(format).refusal((4, columns)))
    if format is Format.FP8_PB_WO:
        # ModelOpt pads; engines cannot read that, and say so when they load.
        rows, blocks = modelopt_blocks(torch.ones(4, columns, dtype=torch.bfloat16))
        assert (rows, blocks) == (1, -(-columns // 128))
        return
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        modelopt_tensors([torch.ones(4, columns, dtype=torch.bfloat16)], format, fuse=False)


def modelopt_blocks(weight: torch.Tensor) -> tuple[int, int]:
    """How many blocks ModelOpt has scales for, down and across."""
    [linear] = quantized_linears([weight], Format.FP8_PB_WO)
    amax = linear.get_submodule("weight_quantizer").get_buffer("_amax")
    down, _, across, _ = amax.shape if amax.dim() else (1, 1, 1, 1)
    return down, across


def test_a_single_block_keeps_four_dimensions() -> None:
    """ModelOpt squeezes its scale to a scalar, which vLLM would not copy into a layer of one block."""
    from modelopt.torch.export.quant_utils import get_weight_scaling_factor

    weight = torch.ones(128, 128, dtype=torch.bfloat16)
    [linear] = quantized_linears([weight], Format.FP8_PB_WO)
    assert get_weight_scaling_factor(linear).shape == ()
    assert packed(weight, Format.FP8_PB_WO, "BF16", row_ops("cpu"))["weight_scale"].shape == (1, 1, 1, 1)


def test_blocks_that_a_sibling_follows_are_whole() -> None:
    scheme = scheme_for(Format.FP8_PB_WO)
    assert scheme.refusal((200, 256)) is None
    assert "128 does not divide" in str(scheme.followed_refusal((200, 256)))
    assert scheme.followed_refusal((256, 256)) is None
    assert scheme_for(Format.FP8).followed_refusal((200, 256)) is None


@pytest.mark.parametrize("format", BLOCKS)
def test_zero_groups_are_counted_and_servable(format: Format) -> None:
    weight = torch.ones(4, 256, dtype=torch.bfloat16)
    weight[:, 128:] = 0
    for device in ("cpu", "torch"):
        assert scheme_for(format).pack(row_ops(device), _rows(weight), {}).zeros == (4 if format in BITS else 1)
        stored = packed(weight, format, "BF16", row_ops(device))
        assert (stored["weight_scale"].float() > 0).all()
        assert dequantize(format, stored)[:, 128:].eq(0).all()


def test_a_bfloat16_quotient_would_round_twice() -> None:
    """What the library gives for a bfloat16 weight and scale: int8 codes that are not the nearest."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize

    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    ours = packed(weight, Format.INT8_G128, "BF16", row_ops("cpu"))
    args = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="group", group_size=128)
    theirs = quantize(weight, ours["weight_scale"], None, args, dtype=torch.int8).float() * ours["weight_scale"].float()
    error, other = (dequantize(Format.INT8_G128, ours) - weight.float()).abs(), (theirs - weight.float()).abs()
    assert (error <= other).all()
    assert error.square().mean() < 0.9 * other.square().mean()


def test_a_scale_per_row_needs_rows() -> None:
    """ModelOpt squeezes the scale of one row to a scalar and then fails to index it."""
    assert "one row" in str(scheme_for(Format.FP8_PC_PT).refusal((1, 32)))
    with pytest.raises(IndexError):
        modelopt_tensors([torch.ones(1, 32, dtype=torch.bfloat16)], Format.FP8_PC_PT, fuse=False)


@pytest.mark.parametrize("shape", [(4,), (2, 3, 16), (0, 16), (4, 0)])
@pytest.mark.parametrize("format", Format)
def test_what_is_no_matrix_is_refused(format: Format, shape: tuple[int, ...]) -> None:
    assert scheme_for(format).refusal(shape)


@pytest.mark.parametrize("format", NVFP4)
def test_zero_blocks_are_counted_and_servable(format: Format) -> None:
    weight = torch.ones(4, 64, dtype=torch.bfloat16)
    weight[1] = 0
    weight[2, 16:32] = -0.0
    scheme = scheme_for(format)
    for device in ("cpu", "torch"):
        ops = row_ops(device)
        result = scheme.pack(ops, _rows(weight), scheme.scalars(ops.amax(_rows(weight)), TINY["BF16"]))
        assert result.zeros == 5
        stored = packed(weight, format, "BF16", ops)
        assert (stored["weight_scale"].float() > 0).all()
        assert stored["weight"][1].eq(0).all()


def test_zero_rows_are_counted() -> None:
    weight = torch.ones(4, 20, dtype=torch.bfloat16)
    weight[1:3] = 0
    for device in ("cpu", "torch"):
        assert scheme_for(Format.FP8_PC_PT).pack(row_ops(device), _rows(weight), {}).zeros == 2


def _rows(weight: torch.Tensor) -> Rows:
    return as_rows(weight, "BF16")


@pytest.mark.parametrize("format", Format)
def test_float64_kept_as_it_is_is_quantized_from_float32(format: Format) -> None:
    weight = torch.randn(4, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for device in ("cpu", "torch"):
        ours = packed(weight, format, "F32", row_ops(device))
        same = packed(weight.float(), format, "F32", row_ops(device))
        assert all(same_bytes(ours[name], same[name]) for name in same)


@pytest.mark.parametrize("format", NVFP4)
def test_a_block_scale_that_underflows(format: Format) -> None:
    """amax so small that 2^-9 * weight_scale_2 is zero in fp32: only fp32 itself has values to store beside it."""
    weight = torch.zeros(2, 32)
    weight[0, 0], weight[1, 3] = 2.0**-131, -(2.0**-149)
    [theirs] = modelopt_tensors([weight], format, fuse=False)
    assert (theirs["weight"][1, :8] & 0x77).eq(0x77).all()
    for device in ("cpu", "torch"):
        ours = packed(weight, format, "F32", row_ops(device))
        assert all(same_bytes(ours[name], theirs[name]) for name in theirs)
        assert dequantize(format, ours)[1, :16].eq(0).all()
