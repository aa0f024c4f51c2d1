"""vLLM's Gemma4 assistant with its head in FP8."""

import os
from typing import Any

import torch
from vllm.config.quantization import QuantSpec
from vllm.model_executor.kernels.linear import init_fp8_linear_kernel
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.quantization.online.fp8 import Fp8PerTensorOnlineLinearMethod
from vllm.model_executor.models import gemma4_mtp
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform

from draftmill_worker.bench.vllm_plugin import fp8_draft_head
from draftmill_worker.bench.vllm_plugin.fp8_tensor import Fp8TensorEmulationKernel

_DONE = "_already_called_process_weights_after_loading"
"""By which vLLM's online methods know a layer that they have quantized."""


class Gemma4MTP(gemma4_mtp.Gemma4MTP):
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        asked = os.environ.get(fp8_draft_head.VARIABLE, "").strip()
        draft = vllm_config.speculative_config.draft_model_config
        configured = fp8_draft_head.configured(asked, vllm_config)
        fp8_draft_head.require(configured)
        built = fp8_draft_head.built(self, draft.dtype)
        fp8_draft_head.require(built)
        self.lm_head.quant_method = Fp8DraftHeadMethod(
            self.lm_head, draft.dtype, {name: condition.holds for name, condition in (configured | built).items()}
        )


class Fp8DraftHeadMethod(QuantizeMethodBase):
    """vLLM's per-tensor online method for linears, beside a head that is built and loaded unquantized.

    Not a subclass of that method: the loader then expects the drafter itself to be quantized online.
    """

    def __init__(self, head: Any, dtype: torch.dtype, conditions: dict[str, bool]) -> None:
        self.conditions = conditions
        """Under which the head was found eligible."""
        self._online = Fp8PerTensorOnlineLinearMethod()
        self.spec = QuantSpec(self._online.weight_quant_key, self._online.activation_quant_key)
        self.fp8_linear = init_fp8_linear_kernel(
            activation_quant_key=self._online.activation_quant_key,
            weight_quant_key=self._online.weight_quant_key,
            weight_shape=head.weight.shape,
            input_dtype=dtype,
            out_dtype=dtype,
            force_kernel=Fp8TensorEmulationKernel if current_platform.is_cpu() else None,
            module_name=type(self).__name__,
        )
        self._online.fp8_linear = self.fp8_linear
        # As `create_weights` of the method leaves them: kernels read these.
        head.logical_widths = [head.num_embeddings_per_partition]
        head.orig_dtype = dtype
        head.weight_block_size = None

    def create_weights(self, layer: torch.nn.Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        raise NotImplementedError("the head was built before it got this method")

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Gives the head a weight of its own, [hidden, vocabulary]; the embedding it was tied to keeps the old one."""
        if getattr(layer, _DONE, False):
            return
        # Another parameter of the same storage: what is replaced from here on is the head's alone.
        layer.register_parameter("weight", torch.nn.Parameter(layer.get_parameter("weight").data, requires_grad=False))
        if current_platform.is_cpu():
            quantize(layer)
        else:
            self._online.process_weights_after_loading(layer)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out: torch.Tensor = self._online.apply(layer, x, bias)
        return out


def quantize(layer: Any) -> None:
    """What the online method does, in torch: its op is missing from CPU builds. That op multiplies by the reciprocal of
    the scale too."""
    weight, dtype = layer.weight.data, current_platform.fp8_dtype()
    most = torch.finfo(dtype).max
    scale = (weight.abs().amax().float() / most).reshape(1)
    layer.input_scale = None
    codes = (weight.float() * scale.reciprocal()).clamp(-most, most).to(dtype)
    replace_parameter(layer, "weight", codes.t())
    replace_parameter(layer, "weight_scale", scale)
    setattr(layer, _DONE, True)
