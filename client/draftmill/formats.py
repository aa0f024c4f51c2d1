"""The quantization formats as data: what is stored, who reads it, where it runs natively.

Scale layouts follow NVIDIA ModelOpt 0.47; `quant_method` and `quant_algo` are the strings vLLM 0.32 dispatches on.
"""

from enum import StrEnum
from typing import Literal

from draftmill._model import Model


class Format(StrEnum):
    FP8 = "fp8"
    FP8_PC_PT = "fp8_pc_pt"
    NVFP4 = "nvfp4"
    W4A16_NVFP4 = "w4a16_nvfp4"
    MXFP8 = "mxfp8"
    FP8_PB_WO = "fp8_pb_wo"
    INT4_G128 = "int4_g128"
    INT8_G128 = "int8_g128"


SCALE_SEARCH_FORMATS = (Format.NVFP4, Format.W4A16_NVFP4)
"""Those with a block scale that `quantize.nvfp4_scale_search` can choose."""


class Stored(Model):
    """One tensor beside a quantized weight of shape [out, in]."""

    suffix: str
    """Replaces `weight` in the tensor's name: `q_proj.weight` has `q_proj.<suffix>`."""
    dtype: str
    """safetensors dtype name."""
    shape: str
    """Written with `out`, `in` and integers, divided upwards; `[]` is a scalar."""


class Scale(Stored):
    per: Literal["tensor", "channel", "block", "activation"]


class FormatSpec(Model):
    name: Format
    bits: int
    group: int | None
    """Columns that share a block scale; None where a scale covers a row or the tensor."""
    in_multiple: int
    """in_features must be a multiple of this."""
    weight_dtype: str
    """safetensors dtype of the stored weight."""
    weight_suffix: str = "weight"
    """Replaces `weight` in the stored weight's name."""
    scales: tuple[Scale, ...]
    described_by: tuple[Stored, ...] = ()
    """Other tensors that a loader needs."""
    activation: Literal["static", "dynamic", "none"]
    quant_method: str
    quant_algo: str
    """Under `algo_key` of the quantization configuration."""
    algo_key: Literal["quant_algo", "format"] = "quant_algo"
    native_capability: int
    """Lowest CUDA compute capability (times ten) whose tensor cores run it without a weight-only fallback."""
    good_for: str


_E4M3_BLOCK = Scale(suffix="weight_scale", dtype="F8_E4M3", shape="[out, in/16]", per="block")
_SCALE_2 = Scale(suffix="weight_scale_2", dtype="F32", shape="[]", per="tensor")

FORMATS: dict[Format, FormatSpec] = {
    spec.name: spec
    for spec in (
        FormatSpec(
            name=Format.FP8,
            bits=8,
            group=None,
            in_multiple=1,
            weight_dtype="F8_E4M3",
            scales=(
                Scale(suffix="weight_scale", dtype="F32", shape="[1]", per="tensor"),
                Scale(suffix="input_scale", dtype="F32", shape="[1]", per="activation"),
            ),
            activation="static",
            quant_method="modelopt",
            quant_algo="FP8",
            native_capability=89,
            good_for="Ada, Hopper and newer; half the bytes, the least acceptance at risk",
        ),
        FormatSpec(
            name=Format.FP8_PC_PT,
            bits=8,
            group=None,
            in_multiple=1,
            weight_dtype="F8_E4M3",
            scales=(Scale(suffix="weight_scale", dtype="F32", shape="[out]", per="channel"),),
            activation="dynamic",
            quant_method="modelopt",
            quant_algo="FP8_PER_CHANNEL_PER_TOKEN",
            native_capability=89,
            good_for="FP8 where activations have outliers: a scale per output row and per token",
        ),
        FormatSpec(
            name=Format.NVFP4,
            bits=4,
            group=16,
            in_multiple=16,
            weight_dtype="U8",
            scales=(
                _E4M3_BLOCK,
                _SCALE_2,
                Scale(suffix="input_scale", dtype="F32", shape="[]", per="activation"),
            ),
            activation="static",
            quant_method="modelopt_fp4",
            quant_algo="NVFP4",
            native_capability=100,
            good_for="Blackwell with FP4 tensor cores: weights and activations in four bits",
        ),
        FormatSpec(
            name=Format.W4A16_NVFP4,
            bits=4,
            group=16,
            in_multiple=16,
            weight_dtype="U8",
            scales=(_E4M3_BLOCK, _SCALE_2),
            activation="none",
            quant_method="modelopt_fp4",
            quant_algo="W4A16_NVFP4",
            native_capability=75,
            good_for="memory-bound drafting at small batch on any GPU with a weight-only kernel",
        ),
        FormatSpec(
            name=Format.MXFP8,
            bits=8,
            group=32,
            in_multiple=32,
            weight_dtype="F8_E4M3",
            scales=(Scale(suffix="weight_scale", dtype="U8", shape="[out, in/32]", per="block"),),
            activation="dynamic",
            quant_method="modelopt_mxfp8",
            quant_algo="MXFP8",
            native_capability=100,
            good_for="Blackwell's eight-bit tensor cores, with weights and activations that vary within a row",
        ),
        FormatSpec(
            name=Format.FP8_PB_WO,
            bits=8,
            group=128,
            in_multiple=128,
            weight_dtype="F8_E4M3",
            scales=(Scale(suffix="weight_scale", dtype="F32", shape="[out/128, 1, in/128, 1]", per="block"),),
            activation="dynamic",
            quant_method="modelopt",
            quant_algo="FP8_PB_WO",
            native_capability=89,
            good_for="Hopper and newer, beside a target in the same block layout; outliers stay in their block",
        ),
        *(
            FormatSpec(
                name=name,
                bits=bits,
                group=128,
                in_multiple=128,
                weight_dtype="I32",
                weight_suffix="weight_packed",
                scales=(Scale(suffix="weight_scale", dtype="BF16", shape="[out, in/128]", per="block"),),
                described_by=(Stored(suffix="weight_shape", dtype="I64", shape="[2]"),),
                activation="none",
                quant_method="compressed-tensors",
                quant_algo="pack-quantized",
                algo_key="format",
                native_capability=75,
                good_for=good_for,
            )
            for name, bits, good_for in (
                (Format.INT4_G128, 4, "Turing, Ampere and consumer cards: a quarter of the bytes on integer kernels"),
                (Format.INT8_G128, 8, "Turing, Ampere and consumer cards: half the bytes, next to no error"),
            )
        ),
    )
}
