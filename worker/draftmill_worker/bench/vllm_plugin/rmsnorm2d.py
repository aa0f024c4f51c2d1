"""Feature `rmsnorm2d`: an rms_norm that reads all rows of a 2-D weight.

DFlash and DSpark drafters norm the context keys of all their layers in one call, `weight` [layers, head_dim] and
`input` [layers, ...]. The CPU op reads the first row only, so that every layer is normed with layer 0's weight.
"""

import torch

from draftmill_worker.bench.vllm_plugin.targets import expect, on_cpu

FEATURE = "rmsnorm2d"


def apply() -> list[str]:
    on_cpu(FEATURE)
    original = expect(FEATURE, "vllm._custom_ops:rms_norm", "1b07ce41f7819618")
    from vllm import _custom_ops

    def rms_norm(out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> None:
        if weight is None or weight.dim() == 1:
            original(out, input, weight, epsilon)
            return
        for row in range(weight.shape[0]):
            original(out[row], input[row], weight[row], epsilon)

    _custom_ops.rms_norm = rms_norm
    return ["rms_norm"]
