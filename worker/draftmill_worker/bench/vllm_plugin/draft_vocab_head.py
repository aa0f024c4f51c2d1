"""A head of draft rows beside an MTP model's, and logits of the whole vocabulary made of its own."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models.utils import PPMissingLayer, maybe_prefix

from draftmill_worker.bench.vllm_plugin.draft_vocab_parts import HEAD, Parts, check, refusing, said

PACKED = "compressed-tensors"
"""The one method that stores heads so that rows can be taken out of them as they are."""


class DraftVocabulary:
    """Goes before one of vLLM's MTP models. Without a draft vocabulary in config.json it changes nothing."""

    config: Any
    draft_lm_head: ParallelLMHead | None

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        # Of the directory that the weights come from.
        checkpoint = vllm_config.speculative_config.draft_model_config.hf_config
        self.claim = said(checkpoint, self.config.vocab_size)
        self.draft_lm_head = None
        if self.claim is None:
            return
        quantized = vllm_config.quant_config
        self.draft_lm_head = ParallelLMHead(
            self.claim.size,
            self.config.hidden_size,
            quant_config=quantized if quantized is not None and quantized.get_name() == PACKED else None,
            prefix=maybe_prefix(prefix, HEAD),
        )
        self.draft_logits_processor = LogitsProcessor(self.claim.size)
        self.draft_vocab_ids = nn.Parameter(torch.arange(self.claim.size), requires_grad=False)
        # The proposer puts the target's head here. A copy of its own would be loaded for nothing.
        self.lm_head = PPMissingLayer()

    def compute_logits(self, hidden_states: Tensor, spec_step_idx: int = 0) -> Tensor | None:
        """[rows, vocabulary]: minus infinity for what cannot be drafted."""
        if self.draft_lm_head is None:
            stock: Tensor | None = super().compute_logits(hidden_states, spec_step_idx)  # type: ignore[misc]
            return stock
        logits = self.draft_logits_processor(self.draft_lm_head, hidden_states)
        return None if logits is None else scattered(logits, self.draft_vocab_ids, self.config.vocab_size)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """DraftVocabularyError for a draft vocabulary of which any part is missing or wrong."""
        if self.claim is None or self.draft_lm_head is None:
            stock: set[str] = super().load_weights(refusing(weights))  # type: ignore[misc]
            return stock
        parts = Parts(tied=bool(self.config.tie_word_embeddings))
        loaded: set[str] = super().load_weights(parts.passing(weights))  # type: ignore[misc]
        parameters = dict(self.draft_lm_head.named_parameters(recurse=False))
        wanted = {name: (tuple(one.shape[1:]), one.dtype) for name, one in parameters.items()}
        ids = check(parts, wanted, self.claim, self.config.vocab_size)
        for name, tensor in parts.draft.items():
            load = getattr(parameters[name], "weight_loader", default_weight_loader)
            load(parameters[name], tensor)
        self.draft_vocab_ids.data.copy_(ids)
        return loaded | {f"draft_lm_head.{name}" for name in parts.draft} | {"draft_vocab_ids"}


class TopDraftTokens:
    """Goes before DraftVocabulary, for models of which vLLM takes the most likely token without whole logits."""

    def get_top_tokens(self: Any, hidden_states: Tensor) -> Tensor:
        """[rows]."""
        if self.draft_lm_head is None:
            stock: Tensor = super().get_top_tokens(hidden_states)  # type: ignore[misc]
            return stock
        top = self.draft_logits_processor.get_top_tokens(self.draft_lm_head, hidden_states)
        ids: Tensor = self.draft_vocab_ids
        return ids[top]


def scattered(logits: Tensor, ids: Tensor, vocab: int) -> Tensor:
    """`logits` [rows, drafted] at the places `ids` [drafted] of [rows, vocab], and minus infinity elsewhere."""
    whole = logits.new_full((*logits.shape[:-1], vocab), float("-inf"))
    return whole.index_copy_(-1, ids, logits)
