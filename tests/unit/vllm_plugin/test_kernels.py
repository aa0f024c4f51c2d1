"""Each kernel, reached as a ModelOpt checkpoint reaches it, against the dequantized weight in plain torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from draftmill.formats import Format
from draftmill_worker.quantize.dequantize import dequantize

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("applied")]

OUT, IN, ROWS = 256, 384, 5
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(20261130)


def _codes(*shape: int) -> torch.Tensor:
    """Random e4m3 codes of a weight's usual size; no NaN among them."""
    return torch.randn(shape).mul(100).clamp(-448, 448).to(torch.float8_e4m3fn)


def _nvfp4() -> dict[str, torch.Tensor]:
    return {
        "weight": torch.randint(0, 256, (OUT, IN // 2), dtype=torch.uint8),
        "weight_scale": torch.rand(OUT, IN // 16).mul(400).add(1).to(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(3e-5),
    }


@dataclass(frozen=True)
class Loaded:
    """A layer as an engine has it."""

    module: torch.nn.Module
    method: Any

    @property
    def kernel(self) -> str:
        return type(self.method.kernel).__name__

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out: torch.Tensor = self.method.apply(self.module, x, bias)
        return out


def _layer(algo: str, tensors: Mapping[str, torch.Tensor]) -> Loaded:
    """A layer of one partition, loaded with `tensors`."""
    from vllm.model_executor.layers.quantization.modelopt import ModelOptLinearMethod, resolve

    method = ModelOptLinearMethod(*resolve(algo, SimpleNamespace(group_size=16), "fc"))
    method.input_dtype = method.out_dtype = torch.bfloat16
    layer = torch.nn.Module()
    method.create_weights(layer, IN, [OUT], IN, OUT, torch.bfloat16, weight_loader=lambda *_: None)
    parameters = dict(layer.named_parameters())
    assert parameters.keys() == tensors.keys()
    for name, parameter in parameters.items():
        parameter.data.copy_(tensors[name].reshape(parameter.shape))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        method.process_weights_after_loading(layer)
    finally:
        torch.set_default_dtype(before)
    return Loaded(layer, method)


def _close(layer: Loaded, x: torch.Tensor, activation: torch.Tensor, weight: torch.Tensor) -> None:
    """The layer's output against activation @ weight in fp64, to what bf16 leaves of a sum of its size."""
    product, size = activation.double() @ weight.double().t(), activation.double().abs() @ weight.double().abs().t()
    for bias in (torch.zeros(OUT, dtype=torch.bfloat16), torch.randn(OUT, dtype=torch.bfloat16)):
        out, expected = layer(x, bias), product + bias.double()
        assert out.dtype == torch.bfloat16
        # The product and the sum are rounded to bf16, the product is summed in fp32.
        excess = (out.double() - expected).abs() - 2**-8 * (product.abs() + expected.abs()) - 2**-16 * size
        assert excess.max() <= 0


def _x() -> torch.Tensor:
    x = torch.randn(ROWS, IN, dtype=torch.bfloat16)
    x[0, :16] = 0  # a block of zeros
    x[1] *= 1000
    return x


def test_w4a16_nvfp4() -> None:
    tensors = _nvfp4()
    layer = _layer("W4A16_NVFP4", {**tensors, "input_scale": torch.tensor(float("nan"))})
    assert layer.kernel == "W4A16NvFp4EmulationKernel"
    weight = dequantize(Format.W4A16_NVFP4, tensors).bfloat16()
    x = _x()
    assert torch.equal(layer(x), functional.linear(x, weight))
    _close(layer, x, x, weight)
    assert layer.module.weight.dtype == torch.uint8, "what was loaded stays to be looked at"


def _nvfp4_activation(x: torch.Tensor, input_scale: float) -> torch.Tensor:
    """What NVFP4 makes of an activation: an e4m3 scale per 16 columns, the nearest E2M1 value, ties to the even code.

    Reciprocals are multiplied with, as in the engine: bf16 activations lie on ties often enough for that to show.
    """
    blocks, up = x.float().reshape(ROWS, -1, 16), 1 / torch.tensor(input_scale)
    scale = (up * (blocks.abs().amax(-1, keepdim=True) * (1 / 6))).clamp(max=448).to(torch.float8_e4m3fn).float()
    units = torch.where(scale > 0, blocks * (1 / (scale * (1 / up))), 0.0).clamp(-6, 6)
    distance = (units.abs()[..., None] - E2M1).abs()
    nearest = distance == distance.amin(-1, keepdim=True)
    even = torch.arange(8) % 2 == 0
    code = torch.where(nearest, torch.where(even, 2, 1), 0).argmax(-1)
    return (E2M1[code] * units.sign() * (scale / up)).reshape(ROWS, -1)


def test_nvfp4_quantizes_its_activations() -> None:
    tensors, input_scale = _nvfp4(), 448 / (6 * 448)
    layer = _layer("NVFP4", {**tensors, "input_scale": torch.tensor(input_scale)})
    assert layer.kernel == "EmulationNvFp4LinearKernel"
    weight, x = dequantize(Format.NVFP4, tensors).bfloat16(), _x()
    activation = _nvfp4_activation(x, input_scale)
    assert (activation - x.float()).abs().max() > 0
    _close(layer, x, activation.bfloat16(), weight)


def test_mxfp8() -> None:
    codes, exponents = _codes(OUT, IN), torch.randint(110, 130, (OUT, IN // 32), dtype=torch.uint8)
    layer = _layer("MXFP8", {"weight": codes, "weight_scale": exponents})
    assert layer.kernel == "EmulationMxfp8LinearKernel"
    weight = codes.float().reshape(OUT, -1, 32) * torch.exp2(exponents.float() - 127)[..., None]
    _close(layer, x := _x(), x, weight.reshape(OUT, IN))


@pytest.fixture
def no_native_fp8_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors with AMX come with kernels of their own, which go first."""
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    listed = linear._POSSIBLE_FP8_BLOCK_KERNELS[PlatformEnum.CPU]
    assert [kernel.__name__.startswith("CPU") for kernel in listed] == [True] * (len(listed) - 1) + [False]
    monkeypatch.setitem(linear._POSSIBLE_FP8_BLOCK_KERNELS, PlatformEnum.CPU, listed[-1:])


@pytest.mark.usefixtures("no_native_fp8_block")
def test_fp8_block_quantizes_its_activations() -> None:
    codes, scale = _codes(OUT, IN), torch.rand(OUT // 128, IN // 128) * 1e-3
    layer = _layer("FP8_PB_WO", {"weight": codes, "weight_scale": scale[:, None, :, None]})
    assert layer.kernel == "Fp8BlockEmulationKernel"
    weight = codes.float() * scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    x = _x()
    groups = x.float().reshape(ROWS, -1, 128)
    step = groups.abs().amax(-1, keepdim=True) / 448
    activation = (groups / step).to(torch.float8_e4m3fn).float() * step
    _close(layer, x, activation.reshape(ROWS, IN), weight)


@pytest.mark.usefixtures("no_native_fp8_block")
def test_fp8_block_of_a_width_that_ends_within_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.OUT", 200)
    codes, scale = _codes(200, IN), torch.rand(2, IN // 128) * 1e-3
    layer = _layer("FP8_PB_WO", {"weight": codes, "weight_scale": scale[:, None, :, None]})
    x = torch.full((ROWS, IN), 0.5, dtype=torch.bfloat16)  # exact in e4m3
    weight = codes.float() * scale.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)
    _close(layer, x, x, weight)


@pytest.mark.parametrize(("format", "bits"), [(Format.INT4_G128, 4), (Format.INT8_G128, 8)])
def test_integers_as_a_packed_checkpoint_reaches_them(format: Format, bits: int) -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsConfig,
        CompressedTensorsLinearMethod,
    )

    half = 2 ** (bits - 1)
    codes = torch.randint(-half, half, (OUT, IN)).to(torch.int8)
    scale = torch.rand(OUT, IN // 128).mul(1e-2).add(1e-4).bfloat16()
    tensors = {
        "weight_packed": pack_to_int32(codes, bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor([OUT, IN]),
    }
    config = CompressedTensorsConfig({}, [], "pack-quantized")
    weights = QuantizationArgs(num_bits=bits, type="int", symmetric=True, strategy="group", group_size=128)
    module = torch.nn.Module()
    module.scheme = config._get_scheme_from_parts(weights, None, None, "pack-quantized", "fc")
    method = CompressedTensorsLinearMethod(config)
    method.create_weights(module, IN, [OUT], IN, OUT, torch.bfloat16, weight_loader=lambda *_: None)
    parameters = dict(module.named_parameters())
    assert parameters.keys() == tensors.keys()
    for name, parameter in parameters.items():
        parameter.data.copy_(tensors[name])
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        method.process_weights_after_loading(module)
    finally:
        torch.set_default_dtype(before)
    assert type(module.scheme.kernel).__name__ == "WNA16EmulationKernel"
    weight, layer, x = dequantize(format, tensors).bfloat16(), Loaded(module, method), _x()
    assert torch.equal(weight, (codes.float() * scale.float().repeat_interleave(128, 1)).bfloat16())
    assert torch.equal(layer(x), functional.linear(x, weight))
    _close(layer, x, x, weight)
    assert torch.equal(module.weight_packed, tensors["weight_packed"]), "what was loaded stays to be looked at"


def test_fp8_without_the_fused_op() -> None:
    """The MLP of a plain FP8 drafter: the activation is not fused with an op that is not there."""
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.fusion.fused_act_quant import maybe_fused_act_quant

    tensors = {"weight": _codes(OUT, IN), "weight_scale": torch.tensor([2e-3])}
    layer = _layer("FP8", {**tensors, "input_scale": torch.tensor([1.0])})
    gate_up = torch.randn(ROWS, 2 * IN, dtype=torch.bfloat16)
    x = maybe_fused_act_quant(SiluAndMul(), gate_up, layer.module)
    assert isinstance(x, torch.Tensor)
    assert torch.equal(x, SiluAndMul()(gate_up))
    # input_scale 1: the activation is rounded to e4m3 as it is. Kernels for AMX leave it in bf16.
    activation = x if layer.kernel.startswith("CPU") else x.to(torch.float8_e4m3fn)
    _close(layer, x, activation.float(), dequantize(Format.FP8, tensors))
