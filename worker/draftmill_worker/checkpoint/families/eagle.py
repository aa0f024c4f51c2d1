"""EAGLE-1: decoder layers over the embedding and the target's last state, joined by `fc`; the head is the target's.

Read from vLLM 0.32, models/llama_eagle.py. The first layer has no input norm, the stack no final one; the class has no
lm_head, and its loader stops at all three. A bias on `fc` it drops without a word.
"""

from draftmill.plans import Family, Head
from draftmill_worker.checkpoint.drafter import Drafter, Module
from draftmill_worker.checkpoint.families.head import LM_HEAD, embedding_module
from draftmill_worker.checkpoint.families.layers import check_layer, layer_modules
from draftmill_worker.checkpoint.families.reading import Reading
from draftmill_worker.checkpoint.families.settings import is_nested_eagle, read_sizes

ARCHITECTURES = ("LlamaForCausalLM", "EagleLlamaForCausalLM")
"""Those whose drafter vLLM builds as `EagleLlamaForCausalLM`; it puts `Eagle` before the decoder's own name."""
NORM = "post_attention_layernorm"


def read(reading: Reading) -> Drafter:
    settings = reading.settings
    sizes = read_sizes(settings)
    _check_class(reading)
    reading.findings.raise_any()
    reading.check_layers(sizes.layers)
    for number, prefix in reading.decoder_layers(sizes.layers).items():
        check_layer(reading, prefix, sizes, sizes.hidden, (NORM,) if number == 0 else (NORM, "input_layernorm"))
    reading.expect("fc.weight", (sizes.hidden, 2 * sizes.hidden))
    reading.expect_rows("embed_tokens.weight", sizes.vocab, sizes.hidden, "vocab_size", required=False)
    _check_unread(reading)
    modules = [Module("fc", ("fc",), ("model.fc",))]
    for number, prefix in reading.decoder_layers(sizes.layers).items():
        modules += layer_modules(prefix, number, "model.")
    modules.append(embedding_module(reading))
    return Drafter(
        family=Family.EAGLE,
        dialect="eagle nested" if is_nested_eagle(reading.checkpoint.config) else "eagle flat",
        head=Head.BORROWED,
        num_layers=sizes.layers,
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab,
        draft_vocab_size=None,
        target_layer_ids=None,
        block_size=None,
        mask_token_id=None,
        target_num_layers=settings.natural("num_target_layers", 1),
        config=reading.checkpoint.config,
        engine_class="EagleLlamaForCausalLM",
        modules=(*modules, *reading.other_modules(modules, "model.")),
        offset_layers=True,
        lm_head_refusal="its head is borrowed: it has no lm_head of its own",
        warnings=tuple(reading.warnings),
    )


def _check_class(reading: Reading) -> None:
    named = reading.settings.texts("architectures")
    if reading.speculators:
        message = "vLLM converts no EAGLE-1 drafter from speculators' dialect"
        reading.findings.add("unknown-family", "config.json: speculators_model_type", message)
    elif not set(named) & set(ARCHITECTURES):
        message = f"is {list(named)}; vLLM's EAGLE-1 class read here is that of {ARCHITECTURES[0]}"
        reading.findings.add("unknown-family", "config.json: architectures", message)


def _check_unread(reading: Reading) -> None:
    """Notes tensors at which the engine's loader stops, or which it drops."""
    message = "vLLM's EAGLE-1 class has no place for it: the drafter would not load, or draft as if it were zero"
    for name in (LM_HEAD, "fc.bias", "norm.weight", "layers.0.input_layernorm.weight"):
        if name in reading.tensors:
            reading.findings.add("shape-mismatch", name, message)
