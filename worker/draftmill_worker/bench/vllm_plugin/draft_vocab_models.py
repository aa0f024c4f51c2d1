"""vLLM's MTP models, with a draft vocabulary where their checkpoint has one.

They keep their names: logs and receipts say which model drafts, and the plugin's own list says that it was changed.
"""

from vllm.model_executor.models import qwen3_5_mtp, qwen3_next_mtp

from draftmill_worker.bench.vllm_plugin.draft_vocab_head import DraftVocabulary, TopDraftTokens


class Qwen3_5MTP(TopDraftTokens, DraftVocabulary, qwen3_5_mtp.Qwen3_5MTP):  # noqa: N801
    pass


class Qwen3_5MoeMTP(TopDraftTokens, DraftVocabulary, qwen3_5_mtp.Qwen3_5MoeMTP):  # noqa: N801
    pass


class Qwen3NextMTP(DraftVocabulary, qwen3_next_mtp.Qwen3NextMTP):
    pass
