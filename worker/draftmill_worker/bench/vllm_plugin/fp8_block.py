"""Block FP8 without a GPU: 128x128 weight blocks, activations quantized per token and 128 columns, fp32 products."""

import torch
from vllm.model_executor.kernels.linear import Fp8BlockScaledMMLinearKernel


class Fp8BlockEmulationKernel(Fp8BlockScaledMMLinearKernel):
    """The base class quantizes the activation; both sides are dequantized and multiplied in fp32."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:  # noqa: ARG003
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Nothing: the checkpoint's layout, [out, in] and [out/128, in/128], is used as it is."""

    def apply_block_scaled_mm(
        self,
        A: torch.Tensor,  # noqa: N803
        B: torch.Tensor,  # noqa: N803
        As: torch.Tensor,  # noqa: N803
        Bs: torch.Tensor,  # noqa: N803
    ) -> torch.Tensor:
        rows, columns = self.weight_group_shape
        scale = Bs.repeat_interleave(rows, 0)[: B.shape[0]].repeat_interleave(columns, 1)[:, : B.shape[1]]
        activation = A.float() * As.repeat_interleave(columns, -1)[:, : A.shape[1]]
        return (activation @ (B.float() * scale).t()).to(self.config.out_dtype)
