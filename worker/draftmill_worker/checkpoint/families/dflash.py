"""DFlash: a block of masked queries over the target's states, projected to keys and values.

Read from vLLM 0.32, models/qwen3_dflash.py and models/qwen3_dflash2.py.
"""

from dataclasses import replace

from draftmill.plans import Family, Head
from draftmill_worker.checkpoint.drafter import Drafter, Module
from draftmill_worker.checkpoint.families import dflash2
from draftmill_worker.checkpoint.families.head import draft_head, embedding_module, head_module
from draftmill_worker.checkpoint.families.layers import check_layer, layer_modules
from draftmill_worker.checkpoint.families.reading import Reading
from draftmill_worker.checkpoint.families.settings import Settings, Sizes, read_sizes
from draftmill_worker.checkpoint.families.vocabulary import check_vocabulary

NORMS = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")
CONTEXT_KV = "rule context-kv: the engine makes its context keys and values from the raw q/k/v weights"
TOP_LEVEL, NESTED = "dflash_config at top level", "dflash_config nested"
NO_QUANT_CONFIG = "lm_head: the engine gives it no quantization config"


def read(reading: Reading) -> Drafter:
    block = BlockDrafter(reading)
    if block.dialect == TOP_LEVEL:
        reading.warnings.append(
            "target_layer_ids stands at the top level: vLLM 0.32's V1 runner reads it in dflash_config only, and taps "
            "other layers silently; serve with the V2 runner"
        )
    own_quantized = reading.settings.flag("has_own_lm_head") is True
    refusal = None if own_quantized else f"{NO_QUANT_CONFIG} without has_own_lm_head: true in config.json"
    if not dflash2.is_dflash2(reading):
        return block.drafter(Family.DFLASH, "DFlashQwen3ForCausalLM", head_keep=refusal, extra=[])
    extra = dflash2.dflash2_modules(reading, block.sizes, block.draft_vocab)
    reading.warnings.append(dflash2.RUNNER)
    drafter = block.drafter(Family.DFLASH, dflash2.ENGINE_CLASS, head_keep=refusal, extra=extra)
    if drafter.head is not Head.BORROWED:
        return drafter
    return replace(drafter, warnings=(*drafter.warnings, dflash2.BORROWED_HEAD))


class BlockDrafter:
    """What DFlash and DSpark share: the stack, the fc over tapped layers, the vocabulary."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        settings = reading.settings
        nested = settings.section("dflash_config")
        self.sizes: Sizes = read_sizes(settings)
        self.draft_vocab = settings.natural("draft_vocab_size", 1)
        self.block_size = _either(nested.natural("block_size", 1), settings.natural("block_size", 1), settings)
        self.mask_token_id = _either(nested.natural("mask_token_id"), settings.natural("mask_token_id"), settings)
        self.layer_ids, self.dialect = _layer_ids(reading, settings, nested)
        self.target_num_layers = settings.natural("num_target_layers", 1)
        target_hidden = settings.natural("target_hidden_size", 1) or self.sizes.hidden
        reading.findings.raise_any()
        self._check(target_hidden)

    def _check(self, target_hidden: int) -> None:
        reading, sizes = self.reading, self.sizes
        reading.check_layers(sizes.layers)
        for prefix in reading.decoder_layers(sizes.layers).values():
            check_layer(reading, prefix, sizes, sizes.hidden, NORMS)
        reading.expect("fc.weight", (sizes.hidden, len(self.layer_ids) * target_hidden))
        for name in ("hidden_norm.weight", "norm.weight"):
            reading.expect(name, (sizes.hidden,))
        if self.target_num_layers is not None and max(self.layer_ids, default=0) >= self.target_num_layers:
            message = f"names layer {max(self.layer_ids)}; num_target_layers is {self.target_num_layers}"
            reading.findings.add("shape-mismatch", "config.json: target_layer_ids", message)
        check_vocabulary(reading, sizes, self.draft_vocab)

    def drafter(self, family: Family, engine_class: str, head_keep: str | None, extra: list[Module]) -> Drafter:
        """`head_keep`: why the engine cannot read a quantized lm_head, if so. `extra`: the family's own modules."""
        reading = self.reading
        head = draft_head(reading, self.sizes.vocab, self.draft_vocab)
        modules = [Module("fc", ("fc",), ("model.fc",))]
        for number, prefix in reading.decoder_layers(self.sizes.layers).items():
            modules += layer_modules(prefix, number, "model.", keep_qkv=CONTEXT_KV)
        modules += [*extra, embedding_module(reading), head_module(reading, head, head_keep)]
        refusal = head_keep if head is Head.OWN else f"its head is {head.value}: it has no lm_head of its own"
        return Drafter(
            family=family,
            dialect=self.dialect,
            head=head,
            num_layers=self.sizes.layers,
            hidden_size=self.sizes.hidden,
            vocab_size=self.sizes.vocab,
            draft_vocab_size=self.draft_vocab,
            target_layer_ids=self.layer_ids,
            block_size=self.block_size,
            mask_token_id=self.mask_token_id,
            target_num_layers=self.target_num_layers,
            config=reading.checkpoint.config,
            engine_class=engine_class,
            modules=(*modules, *reading.other_modules(modules, "model.")),
            offset_layers=True,
            engine_offsets_ignore=True,
            lm_head_refusal=refusal,
            float32_modules=("confidence_head",),
            warnings=tuple(reading.warnings),
        )


def _either(nested: int | None, top: int | None, settings: Settings) -> int | None:
    """One value that two generations of the configuration keep in two places."""
    if nested is not None and top is not None and nested != top:
        message = f"dflash_config says {nested}, the top level {top}"
        settings.findings.add("malformed-config", "config.json: dflash_config", message)
    return top if nested is None else nested


def _layer_ids(reading: Reading, settings: Settings, nested: Settings) -> tuple[tuple[int, ...], str]:
    """The target layers tapped, counted from 0, and the dialect that named them."""
    inner, outer = nested.naturals("target_layer_ids"), settings.naturals("target_layer_ids")
    if inner is not None and outer is not None and inner != outer:
        message = f"dflash_config says {list(inner)}, the top level {list(outer)}"
        reading.findings.add("malformed-config", "config.json: target_layer_ids", message)
    ids = outer if inner is None else inner
    if ids is None:
        message = "target_layer_ids is required: which layers the drafter was trained on cannot be recomputed"
        reading.findings.add("target-layers-missing", "config.json: target_layer_ids", message)
        return (), "unknown"
    if reading.speculators:
        return ids, "speculators"
    return ids, TOP_LEVEL if inner is None else NESTED
