"""Per-tensor FP8 without a GPU: activations quantized with one scale, both sides dequantized, fp32 products."""

import torch
from vllm.model_executor.kernels.linear import FP8ScaledMMLinearKernel, FP8ScaledMMLinearLayerConfig


class Fp8TensorEmulationKernel(FP8ScaledMMLinearKernel):
    """The base class quantizes the activation. The weight is [in, out], as vLLM's FP8 kernels take it."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:  # noqa: ARG003
        return True, None

    @classmethod
    def can_implement(cls, c: FP8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        keys = (c.weight_quant_key, c.activation_quant_key)
        if not all(key.scale.group_shape.is_per_tensor() for key in keys):
            return False, "only scales per tensor are emulated"
        return True, None

    def apply_scaled_mm(
        self,
        *,
        A: torch.Tensor,  # noqa: N803
        B: torch.Tensor,  # noqa: N803
        out_dtype: torch.dtype,
        As: torch.Tensor,  # noqa: N803
        Bs: torch.Tensor,  # noqa: N803
        bias: torch.Tensor | None,
        output_shape: list[int],
    ) -> torch.Tensor:
        product = (A.float() * As) @ (B.float() * Bs)
        if bias is not None:
            product = product + bias
        return product.to(out_dtype).view(output_shape)
