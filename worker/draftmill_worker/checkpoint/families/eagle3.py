"""EAGLE3: one or few decoder layers over an embedding and the target's states, joined; often a trimmed vocabulary.

Read from vLLM 0.32, models/llama_eagle3.py and models/qwen3_eagle3.py.
"""

from draftmill.plans import Family, Head
from draftmill_worker.checkpoint.drafter import Drafter, Module
from draftmill_worker.checkpoint.families.head import draft_head, embedding_module, head_module
from draftmill_worker.checkpoint.families.layers import check_layer, layer_modules
from draftmill_worker.checkpoint.families.reading import Reading
from draftmill_worker.checkpoint.families.settings import Settings, Sizes, read_sizes
from draftmill_worker.checkpoint.families.vocabulary import check_vocabulary

NORMS = ("input_layernorm", "post_attention_layernorm")
# Low, middle and high layer of the target: what the engine taps when the configuration names none.
_DEFAULT_AUX = 3


def read(reading: Reading) -> Drafter:
    settings = reading.settings
    sizes = read_sizes(settings)
    draft_vocab = settings.natural("draft_vocab_size", 1)
    target_hidden = settings.natural("target_hidden_size", 1) or sizes.hidden
    layer_ids = _layer_ids(settings)
    reading.findings.raise_any()
    qwen3 = _is_qwen3(settings)
    norms = (*NORMS, "self_attn.q_norm", "self_attn.k_norm") if qwen3 else NORMS
    reading.check_layers(sizes.layers)
    for number, prefix in reading.decoder_layers(sizes.layers).items():
        check_layer(reading, prefix, sizes, sizes.hidden * (2 if number == 0 else 1), norms)
        # Later layers take no target states, so that exporters leave out their norm.
        reading.expect(f"{prefix}.hidden_norm.weight", (sizes.hidden,), required=number == 0)
    _check_fc(reading, sizes, layer_ids, target_hidden)
    reading.expect("norm.weight", (sizes.hidden,))
    check_vocabulary(reading, sizes, draft_vocab)
    head = draft_head(reading, sizes.vocab, draft_vocab)
    modules = _modules(reading, sizes.layers, qwen3)
    modules += [embedding_module(reading), head_module(reading, head, None)]
    return Drafter(
        family=Family.EAGLE3,
        dialect=_dialect(reading),
        head=head,
        num_layers=sizes.layers,
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab,
        draft_vocab_size=draft_vocab,
        target_layer_ids=layer_ids,
        block_size=None,
        mask_token_id=settings.natural("mask_token_id"),
        target_num_layers=settings.natural("num_target_layers", 1),
        config=reading.checkpoint.config,
        engine_class="Eagle3Qwen3ForCausalLM" if qwen3 else "Eagle3LlamaForCausalLM",
        modules=(*modules, *reading.other_modules(modules, "model.")),
        offset_layers=True,
        lm_head_refusal=None if head is Head.OWN else f"its head is {head.value}: it has no lm_head of its own",
        warnings=tuple(reading.warnings),
    )


def _modules(reading: Reading, layers: int, qwen3: bool) -> list[Module]:
    # The Qwen3 class builds q/k/v a second time under the layer's own prefix, without `self_attn`.
    again = ("qkv_proj",) if qwen3 else ()
    modules = []
    if "fc.weight" in reading.tensors:
        modules.append(Module("fc", ("fc",), ("model.fc",)))
    for number, prefix in reading.decoder_layers(layers).items():
        modules += layer_modules(prefix, number, "model.", qkv_runtime=again)
    return modules


def _layer_ids(settings: Settings) -> tuple[int, ...] | None:
    """Auxiliary layer ids as the engine counts them: id n is the state after n layers."""
    key = "eagle_aux_hidden_state_layer_ids"
    return settings.naturals(key) or settings.section("eagle_config").naturals(key)


def _check_fc(reading: Reading, sizes: Sizes, layer_ids: tuple[int, ...] | None, target_hidden: int) -> None:
    settings = reading.settings
    if settings.section("eagle_config").flag("use_aux_hidden_state") is False:
        return
    count = settings.natural("num_aux_hidden_states", 1) or (len(layer_ids) if layer_ids else _DEFAULT_AUX)
    reading.expect("fc.weight", (sizes.hidden, count * target_hidden))
    if layer_ids is None:
        reading.warnings.append("the configuration names no auxiliary layers: the engine taps its defaults")


def _is_qwen3(settings: Settings) -> bool:
    if settings.text("speculators_model_type"):
        return settings.text("model_type") == "qwen3"
    return any("Qwen3ForCausalLM" in name for name in settings.texts("architectures"))


def _dialect(reading: Reading) -> str:
    if reading.speculators:
        return "speculators"
    return "midlayer" if "midlayer" in reading.layer_prefixes().values() else "layers"
