"""DSpark on model runner V1: DFlash's proposer with DSpark's block and the walk of its Markov head.

vLLM's own implementation, for V2, is vllm/v1/worker/gpu/spec_decode/dspark/speculator.py; greedy drafting as there.
"""

import copy
from typing import Any

import torch
from vllm.v1.spec_decode.dflash import DFlashProposer

from draftmill_worker.bench.vllm_plugin.targets import PluginError


class DSparkProposer(DFlashProposer):
    """Drafts N tokens from a block of N queries: the last accepted token (the anchor) and N - 1 masks.

    Query i predicts the token after its position. logits_i = lm_head(h_i) + w2(w1(token before)), where the token
    before query 0's prediction is the anchor, and before each other the one just drafted.
    """

    num_speculative_tokens: int
    _anchors: torch.Tensor
    """[requests], the last accepted tokens, kept from laying out the block until sampling it."""

    def __init__(self, vllm_config: Any, device: torch.device, runner: Any = None) -> None:
        _refuse_uncovered(vllm_config.speculative_config)
        super().__init__(_as_dflash(vllm_config), device, runner)

    def set_inputs_first_pass(
        self, target_token_ids: torch.Tensor, next_token_ids: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[int, torch.Tensor, Any]:
        drafted = self.num_speculative_tokens
        self._anchors = next_token_ids
        # DFlash lays out 1 + n queries for n masks, and samples the masks alone; here the anchor is sampled too.
        self.num_speculative_tokens = max(drafted - 1, 0)
        try:
            queries, _, metadata = super().set_inputs_first_pass(target_token_ids, next_token_ids, *args, **kwargs)
        finally:
            self.num_speculative_tokens = drafted
        return queries, self.arange[:queries], metadata

    def _sample_draft_tokens(
        self,
        hidden_states: torch.Tensor,
        sampling_metadata: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, None]:
        """Token ids [requests * N], request by request, from the states of all queries in that order."""
        logits = self.model.compute_draft_logits(hidden_states)
        logits = logits.view(-1, self.num_speculative_tokens, logits.shape[-1])
        previous, drafted = self._anchors, []
        for step in range(self.num_speculative_tokens):
            bias = self.model.markov_bias(self.model.markov_embed(previous))
            previous = self.model.map_draft_to_target((logits[:, step] + bias).argmax(dim=-1))
            drafted.append(previous)
        return torch.stack(drafted, dim=1).flatten(), None


def _refuse_uncovered(speculative_config: Any) -> None:
    config = speculative_config.draft_model_config.hf_config
    uncovered = {
        "drafting among the top k (dspark_draft_topk)": getattr(config, "dspark_draft_topk", None) is not None,
        "blocks whose anchor is not sampled (sample_from_anchor: false)": not getattr(
            config, "sample_from_anchor", True
        ),
        "probabilistic drafting (draft_sample_method)": speculative_config.draft_sample_method != "greedy",
        "drafters other than Qwen3DSparkModel": config.architectures != ["Qwen3DSparkModel"],
    }
    named = [what for what, present in uncovered.items() if present]
    if named:
        raise PluginError(f"dspark: not covered on model runner V1: {'; '.join(named)}")


def _as_dflash(vllm_config: Any) -> Any:
    """The same configuration with DFlash named as the method, which is what the base classes dispatch on."""
    speculative_config = copy.copy(vllm_config.speculative_config)
    speculative_config.method = "dflash"
    vllm_config = copy.copy(vllm_config)
    vllm_config.speculative_config = speculative_config
    return vllm_config
