"""Feature `emulation`: kernels for formats that this platform has none for, and no fused op that it lacks.

The numbers are those of the format; the speed is not. vLLM ships emulation kernels for NVFP4 and MXFP8 and lists them
for GPUs only. Its MXFP8 emulation leaves activations unquantized; a GPU with MXFP8 tensor cores quantizes them.
"""

from importlib import import_module

import torch

from draftmill_worker.bench.vllm_plugin.targets import PluginError, expect, on_cpu

FEATURE = "emulation"
_LINEAR = "vllm.model_executor.kernels.linear"
_FUSED = "vllm.model_executor.layers.fusion.fused_act_quant"
_NVFP4_CALLERS = (
    "vllm.model_executor.layers.quantization.modelopt",
    "vllm.model_executor.layers.quantization.compressed_tensors.schemes.compressed_tensors_w4a4_nvfp4",
)


def apply() -> list[str]:
    on_cpu(FEATURE)
    return [_nvfp4(), _mxfp8(), _w4a16_nvfp4(), _fp8_block(), _wna16(), *_fused_act_quant()]


def _nvfp4() -> str:
    _register_shipped("EmulationNvFp4LinearKernel", "nvfp4", "_POSSIBLE_NVFP4_KERNELS")
    return "nvfp4"


def _mxfp8() -> str:
    _register_shipped("EmulationMxfp8LinearKernel", "mxfp8", "_POSSIBLE_MXFP8_KERNELS")
    return "mxfp8"


def _register_shipped(kernel: str, kind: str, registry: str) -> None:
    linear = import_module(_LINEAR)
    from vllm.platforms import PlatformEnum

    listed = getattr(linear, registry, None)
    if not isinstance(listed, dict) or listed.get(PlatformEnum.CPU) or not hasattr(linear, kernel):
        raise PluginError(f"{FEATURE}: {_LINEAR}.{registry} should list no {kind} kernel for CPU, and {kernel} exist")
    linear.register_linear_kernel(getattr(linear, kernel), PlatformEnum.CPU, kind)


def _w4a16_nvfp4() -> str:
    """The weight-only kernels are chosen by name in a function, not from the registry: wrap it where it is called."""
    original = expect(FEATURE, f"{_LINEAR}:init_nvfp4_linear_kernel", "c9a605a9486d1d02")
    from vllm.model_executor.kernels.linear import NvFp4LinearKernel, NvFp4LinearLayerConfig

    from draftmill_worker.bench.vllm_plugin.w4a16_nvfp4 import W4A16NvFp4EmulationKernel

    def init_nvfp4_linear_kernel(use_a16: bool = False) -> NvFp4LinearKernel:
        return W4A16NvFp4EmulationKernel(NvFp4LinearLayerConfig()) if use_a16 else original(use_a16)

    for name in _NVFP4_CALLERS:
        caller = import_module(name)
        if getattr(caller, "init_nvfp4_linear_kernel", None) is not original:
            raise PluginError(f"{FEATURE}: {name} does not use {_LINEAR}.init_nvfp4_linear_kernel")
        caller.init_nvfp4_linear_kernel = init_nvfp4_linear_kernel  # type: ignore[attr-defined]
    return "w4a16_nvfp4"


def _fp8_block() -> str:
    linear = import_module(_LINEAR)
    from vllm.platforms import PlatformEnum

    from draftmill_worker.bench.vllm_plugin.fp8_block import Fp8BlockEmulationKernel

    listed = getattr(linear, "_POSSIBLE_FP8_BLOCK_KERNELS", {}).get(PlatformEnum.CPU)
    if not isinstance(listed, list):
        raise PluginError(f"{FEATURE}: {_LINEAR}._POSSIBLE_FP8_BLOCK_KERNELS lists nothing for CPU")
    # Last: processors with AMX have kernels of their own.
    listed.append(Fp8BlockEmulationKernel)
    return "fp8_block"


def _wna16() -> str:
    linear = import_module(_LINEAR)
    from vllm.platforms import PlatformEnum

    from draftmill_worker.bench.vllm_plugin.wna16 import WNA16EmulationKernel

    listed = getattr(linear, "_POSSIBLE_KERNELS", {}).get(PlatformEnum.CPU)
    if not isinstance(listed, list):
        raise PluginError(f"{FEATURE}: {_LINEAR}._POSSIBLE_KERNELS lists nothing for CPU")
    linear.register_linear_kernel(WNA16EmulationKernel, PlatformEnum.CPU, "mp")
    # First: the kernel that ships takes what its op cannot do on every processor.
    listed.insert(0, listed.pop())
    return "wna16"


def _fused_act_quant() -> list[str]:
    """SiluAndMul and static FP8 quantization in one op, which this build may not hold; unfused they are the same."""
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8StaticTensorSym

    if hasattr(torch.ops._C, "silu_and_mul_quant"):
        return []
    producers = getattr(import_module(_FUSED), "_FUSED_ACT_QUANT", {})
    if producers.pop((SiluAndMul, kFp8StaticTensorSym), None) is None:
        raise PluginError(f"{FEATURE}: {_FUSED}._FUSED_ACT_QUANT does not fuse SiluAndMul with static FP8")
    return ["fused_act_quant"]
