"""A small whole language model that drafts for a larger one.

Read from vLLM 0.32, models/llama.py, qwen2.py and qwen3.py, and v1/spec_decode/draft_model.py, which builds it under
the prefix `draft_model`.
"""

from draftmill.plans import Family, Head
from draftmill_worker.checkpoint.drafter import Drafter, Module
from draftmill_worker.checkpoint.families.head import head_module, model_head
from draftmill_worker.checkpoint.families.layers import check_layer, layer_modules
from draftmill_worker.checkpoint.families.reading import Reading
from draftmill_worker.checkpoint.families.settings import read_sizes

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Those whose modules are named and fused as `layers` says."""
_NORMS = ("input_layernorm", "post_attention_layernorm")


def read(reading: Reading) -> Drafter:
    settings = reading.settings
    sizes = read_sizes(settings)
    architecture = next(name for name in settings.texts("architectures") if name in ARCHITECTURES)
    reading.findings.raise_any()
    head_norms = ("self_attn.q_norm", "self_attn.k_norm") if architecture == "Qwen3ForCausalLM" else ()
    reading.check_layers(sizes.layers)
    for prefix in reading.decoder_layers(sizes.layers).values():
        check_layer(reading, prefix, sizes, sizes.hidden, (*_NORMS, *head_norms))
    reading.expect_rows("model.embed_tokens.weight", sizes.vocab, sizes.hidden, "vocab_size")
    reading.expect_rows("lm_head.weight", sizes.vocab, sizes.hidden, "vocab_size", required=False)
    reading.expect("model.norm.weight", (sizes.hidden,))
    head = model_head(reading, sizes.vocab)
    modules: list[Module] = []
    for number, prefix in reading.decoder_layers(sizes.layers).items():
        modules += layer_modules(prefix, number, "draft_model.model.")
    modules.append(head_module(reading, head, None, "draft_model.lm_head"))
    return Drafter(
        family=Family.DRAFT_MODEL,
        dialect="transformers",
        head=head,
        num_layers=sizes.layers,
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab,
        draft_vocab_size=None,
        target_layer_ids=None,
        block_size=None,
        mask_token_id=None,
        target_num_layers=None,
        config=reading.checkpoint.config,
        engine_class=architecture,
        modules=(*modules, *reading.other_modules(modules, "draft_model.")),
        lm_head_refusal=None if head is Head.OWN else "its head is tied to the embedding, which is kept",
        warnings=tuple(reading.warnings),
    )
