"""Feature `dspark`: model runner V1 on a CPU drafts with DSpark, which vLLM implements for V2 alone."""

from typing import Any

import torch

from draftmill_worker.bench.vllm_plugin.targets import PluginError, expect, on_cpu

FEATURE = "dspark"
_REFUSAL = "dspark speculative decoding"


def apply() -> list[str]:
    on_cpu(FEATURE)
    return [_lift_refusal(), _runner()]


def _lift_refusal() -> str:
    name = "_get_v1_model_runner_unsupported_features"
    original = expect(FEATURE, f"vllm.config.vllm:VllmConfig.{name}", "cec40925f1332425")
    from vllm.config import VllmConfig

    def unsupported(self: VllmConfig) -> list[str]:
        return [reason for reason in original(self) if reason != _REFUSAL]

    setattr(VllmConfig, name, unsupported)
    return "unsupported_features"


def _runner() -> str:
    for path, digest in _RELIED_ON.items():
        expect(FEATURE, path, digest)
    from vllm.v1.worker import cpu_model_runner, cpu_worker
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config

    from draftmill_worker.bench.vllm_plugin.dspark_proposer import DSparkProposer

    if cpu_worker.CPUModelRunner is not CPUModelRunner:
        raise PluginError(f"{FEATURE}: vllm.v1.worker.cpu_worker does not run CPUModelRunner")

    class DSparkCPUModelRunner(CPUModelRunner):
        def __init__(self, vllm_config: Any, device: torch.device) -> None:
            super().__init__(vllm_config, device)
            if self.speculative_config is not None and self.speculative_config.use_dspark():
                # The base class counts DSpark as an EAGLE method and has built a proposer for that.
                with cpu_model_runner._torch_cuda_wrapper():
                    self.drafter = DSparkProposer(self.vllm_config, self.device, self)
                self.use_aux_hidden_state_outputs = True

        def _get_eagle3_aux_layers_from_config(self) -> tuple[int, ...] | None:
            if self.speculative_config is None or not self.speculative_config.use_dspark():
                inherited: tuple[int, ...] | None = super()._get_eagle3_aux_layers_from_config()
                return inherited
            # V1 does not read a top-level `target_layer_ids` and would tap EAGLE3's default layers.
            layers: tuple[int, ...] | None = get_eagle3_aux_layers_from_config(self.speculative_config)
            if layers is None:
                raise PluginError(f"{FEATURE}: the drafter's config names no target layers")
            return layers

    cpu_worker.CPUModelRunner = DSparkCPUModelRunner
    return "model_runner"


_RELIED_ON = {
    "vllm.v1.worker.cpu_model_runner:CPUModelRunner.__init__": "26ba909a7737f3fb",
    "vllm.v1.worker.cpu_model_runner:CPUModelRunner.load_model": "270bdfc6670d8cba",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_eagle3_aux_layers_from_config": "2e4fd621ab179c36",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.propose_draft_token_ids": "a60269aca9de4e25",
    "vllm.v1.spec_decode.dflash:DFlashProposer": "eec86cda56a80e8b",
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.propose": "00017c139f27a3e7",
    "vllm.model_executor.models.qwen3_dspark:Qwen3DSparkForCausalLM": "2928cbe6bc7cf254",
}
