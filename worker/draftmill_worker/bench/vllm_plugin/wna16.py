"""Integer weights in pack-quantized layout without a GPU: dequantized once, after loading, to the model's dtype.

vLLM's own kernel for CPUs takes four bits only, and its op is missing from builds without AVX-512.
"""

import torch
from torch.nn import functional
from vllm.model_executor.kernels.linear import MPLinearKernel, MPLinearLayerConfig
from vllm.scalar_type import scalar_types

_BITS = {scalar_types.uint4b8: 4, scalar_types.uint8b128: 8}


class WNA16EmulationKernel(MPLinearKernel):
    """The packed weight and its scales stay on the layer as they were loaded, beside the dequantized weight."""

    @classmethod
    def get_min_capability(cls) -> int:
        return -1

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        if c.weight_type not in _BITS or c.zero_points:
            return False, "only symmetric weights of four or eight bits are emulated"
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        words, scale, _ = self._get_weight_params(layer)
        bits = _BITS[self.config.weight_type]
        shifts = torch.arange(0, 32, bits, dtype=torch.int32)
        codes = (words.data.unsqueeze(-1) >> shifts & (2**bits - 1)) - 2 ** (bits - 1)
        groups = codes.reshape(*scale.shape, -1) * scale.data.float().unsqueeze(-1)
        weight = groups.reshape(words.shape[0], -1).to(torch.get_default_dtype())
        layer.register_buffer("emulated_weight", weight, persistent=False)

    def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return functional.linear(x, layer.get_buffer("emulated_weight"), bias)
