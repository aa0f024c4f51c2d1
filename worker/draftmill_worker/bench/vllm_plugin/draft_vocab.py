"""Feature `draft_vocab`: MTP models draft from a vocabulary of their own, with a head of its rows.

On every platform: no release of vLLM knows a draft vocabulary of an MTP block. The models are registered by name, so
that nothing of them is imported before vLLM wants one.
"""

from draftmill_worker.bench.vllm_plugin.targets import PluginError, expect_file

FEATURE = "draft_vocab"
CLASSES = "draftmill_worker.bench.vllm_plugin.draft_vocab_models"
_QWEN3_5 = "vllm.model_executor.models.qwen3_5_mtp"
_QWEN3_NEXT = "vllm.model_executor.models.qwen3_next_mtp"
MODELS = {"Qwen3_5MTP": _QWEN3_5, "Qwen3_5MoeMTP": _QWEN3_5, "Qwen3NextMTP": _QWEN3_NEXT}
"""Architecture, and the module that vLLM has it in."""
_RELIED_ON = {
    _QWEN3_5: {"fbf31b1dd2b63eaf"},
    _QWEN3_NEXT: {"df7d8b6a5ffb7f45"},
}
"""Files that were read: vLLM 0.32 and 0.33 have the same."""


def apply() -> list[str]:
    for module, digests in _RELIED_ON.items():
        expect_file(FEATURE, module, digests)
    from vllm.model_executor.models.registry import ModelRegistry

    for name, module in MODELS.items():
        if getattr(ModelRegistry.models.get(name), "module_name", None) != module:
            raise PluginError(f"{FEATURE}: {name} should be registered as {module}'s: is another plugin in its place?")
    for name in MODELS:
        ModelRegistry.register_model(name, f"{CLASSES}:{name}")
    return list(MODELS)
