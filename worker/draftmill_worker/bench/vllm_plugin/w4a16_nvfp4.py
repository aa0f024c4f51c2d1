"""W4A16 NVFP4 without a GPU: the weight is dequantized once, after loading, and used in the model's dtype."""

import torch
from torch.nn import functional
from vllm.model_executor.kernels.linear import NvFp4LinearKernel, NvFp4LinearLayerConfig
from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import dequantize_to_dtype

GROUP = 16


class W4A16NvFp4EmulationKernel(NvFp4LinearKernel):
    """The packed weight and its scales stay on the layer as they were loaded, beside the dequantized weight."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:  # noqa: ARG003
        return True, None

    @classmethod
    def can_implement(cls, config: NvFp4LinearLayerConfig) -> tuple[bool, str | None]:  # noqa: ARG003
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        weight = dequantize_to_dtype(
            layer.weight, layer.weight_scale, layer.weight_global_scale, torch.get_default_dtype(), GROUP, swizzle=False
        )
        layer.register_buffer("emulated_weight", weight, persistent=False)

    def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return functional.linear(x, layer.get_buffer("emulated_weight"), bias)
