"""DSpark over Gemma4 layers: q, k and v stand alone, and values are keys.

Read from vLLM 0.32, models/gemma4_dspark.py: layers are counted from 0, not on from the target's. fc, q, o, gate, up
and down are built with the drafter's quantization config; Markov head, confidence head and lm_head without. The loader
passes over tensors it does not know and looks for none that is missing.
"""

from dataclasses import replace

from draftmill.plans import Family, Head
from draftmill_worker.checkpoint.drafter import Drafter, Module
from draftmill_worker.checkpoint.families.head import LM_HEAD, embedding_module, head_module
from draftmill_worker.checkpoint.families.layers import GATE_UP
from draftmill_worker.checkpoint.families.reading import Reading, keep_reason
from draftmill_worker.checkpoint.families.settings import Settings, Sizes, read_sizes

ARCHITECTURE = "Gemma4DSparkModel"
CONTEXT_K = "rule context-kv: the engine makes its context keys and values from the raw k weights"
SHARED = "vLLM 0.32 serves this class with the target's embedding and head where the vocabularies agree"
_FULL = "full_attention"
_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
# Gemma4TextConfig's default in transformers.
_GLOBAL_HEAD_DIM = 512


def read(reading: Reading) -> Drafter:
    settings = reading.settings
    sizes = _full_attention(settings, read_sizes(settings))
    layer_ids = settings.naturals("dspark_target_layer_ids") or settings.naturals("target_layer_ids")
    rank = settings.required("markov_rank")
    if layer_ids is None:
        message = "target_layer_ids is required: which layers the drafter was trained on cannot be recomputed"
        reading.findings.add("target-layers-missing", "config.json: target_layer_ids", message)
    _check_served(reading, sizes)
    reading.findings.raise_any()
    layer_ids = layer_ids or ()
    _check_tensors(reading, sizes, len(layer_ids), rank)
    head = Head.OWN if LM_HEAD in reading.tensors else Head.BORROWED
    reading.warnings.append(SHARED)
    modules = _modules(reading, sizes)
    modules += [
        embedding_module(reading),
        head_module(reading, head, "lm_head: the engine gives it no quantization config"),
    ]
    return Drafter(
        family=Family.DSPARK,
        dialect="gemma4",
        head=head,
        num_layers=sizes.layers,
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab,
        draft_vocab_size=None,
        target_layer_ids=layer_ids,
        block_size=settings.natural("block_size", 1) or settings.natural("dspark_block_size", 1),
        mask_token_id=settings.natural("mask_token_id") or settings.natural("dspark_noise_token_id"),
        target_num_layers=settings.natural("num_target_layers", 1),
        config=reading.checkpoint.config,
        engine_class="Gemma4DSparkForCausalLM",
        modules=(*modules, *reading.other_modules(modules, "model.")),
        lm_head_refusal="the engine gives it no quantization config",
        float32_modules=("confidence_head",),
        warnings=tuple(reading.warnings),
    )


def _full_attention(settings: Settings, sizes: Sizes) -> Sizes:
    """The sizes of a layer with full attention, the only kind that is served, as Gemma4TextConfig derives them."""
    heads = settings.natural("num_global_key_value_heads", 1) or sizes.kv_heads
    return replace(sizes, head_dim=settings.natural("global_head_dim", 1) or _GLOBAL_HEAD_DIM, kv_heads=heads)


def _check_served(reading: Reading, sizes: Sizes) -> None:
    settings, findings = reading.settings, reading.findings
    if reading.speculators:
        message = "vLLM converts no Gemma4 drafter from speculators' dialect"
        findings.add("unknown-family", "config.json: speculators_model_type", message)
    # The last layer has full attention whatever is said.
    types = settings.texts("layer_types")[: sizes.layers]
    if settings.flag("attention_k_eq_v") is not True or {*types[:-1]} - {_FULL} or len(types) < sizes.layers:
        message = f"every layer must be {_FULL} with attention_k_eq_v: the engine asserts it when it loads"
        findings.add("malformed-config", "config.json: layer_types", message)
    if settings.values.get("per_layer_config") is not None:
        findings.add("malformed-config", "config.json: per_layer_config", "sizes by layer are not read by this build")
    draft_vocab = settings.natural("draft_vocab_size", 1)
    if draft_vocab is not None and draft_vocab != sizes.vocab:
        message = f"is {draft_vocab}, vocab_size {sizes.vocab}: this class never maps draft ids to the target's"
        findings.add("malformed-config", "config.json: draft_vocab_size", message)


def _check_tensors(reading: Reading, sizes: Sizes, tapped: int, rank: int) -> None:
    hidden, wide = sizes.hidden, sizes.intermediate
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    reading.check_layers(sizes.layers)
    shapes = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (sizes.head_dim,),
        "self_attn.k_norm": (sizes.head_dim,),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
        **dict.fromkeys(_NORMS, (hidden,)),
    }
    for prefix in reading.decoder_layers(sizes.layers).values():
        for name, shape in shapes.items():
            reading.expect(f"{prefix}.{name}.weight", shape)
        reading.expect(f"{prefix}.layer_scalar", (1,), required=False)
    reading.expect("fc.weight", (hidden, tapped * hidden))
    for name in ("hidden_norm.weight", "norm.weight"):
        reading.expect(name, (hidden,))
    reading.expect_rows("embed_tokens.weight", sizes.vocab, hidden, "vocab_size", required=False)
    reading.expect_rows(LM_HEAD, sizes.vocab, hidden, "vocab_size", required=False)
    for table in ("markov_w1", "markov_w2"):
        reading.expect_rows(f"markov_head.{table}.weight", sizes.vocab, rank, "vocab_size")
    settings = reading.settings
    width = hidden + (rank if settings.flag("confidence_head_with_markov") else 0)
    reading.expect("confidence_head.proj.weight", (1, width), required=settings.flag("enable_confidence_head") is True)


def _modules(reading: Reading, sizes: Sizes) -> list[Module]:
    modules = [Module("fc", ("fc",), ("model.fc",))]
    for number, prefix in reading.decoder_layers(sizes.layers).items():
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"):
            parts = GATE_UP if name == "mlp.gate_up_proj" else (name,)
            keep = CONTEXT_K if name == "self_attn.k_proj" else None
            members = tuple(f"{prefix}.{part}" for part in parts)
            modules.append(Module(f"{prefix}.{name}", members, (f"model.layers.{{layer}}.{name}",), number, keep))
    for table in ("markov_w1", "markov_w2"):
        name = f"markov_head.{table}"
        modules.append(Module(name, (name,), (f"model.{name}",), keep=keep_reason(name)))
    return modules
