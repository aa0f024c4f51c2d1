"""What DFlash2 adds to DFlash: a convolution around attention and MLP, and a selector over the head's candidates.

Read from vLLM 0.32, models/qwen3_dflash2.py: a convolution's kernel_projection is built with the quantization config,
the selector without. Only model runner V2 drafts with it; V1 refuses it.
"""

from draftmill_worker.checkpoint.drafter import Module
from draftmill_worker.checkpoint.families.reading import Reading, keep_reason
from draftmill_worker.checkpoint.families.settings import Sizes

ARCHITECTURE = "DFlash2DraftModel"
ENGINE_CLASS = "DFlash2Qwen3ForCausalLM"
RUNNER = "DFlash2 drafts on vLLM's model runner V2 alone: serve with VLLM_USE_V2_MODEL_RUNNER=1"
BORROWED_HEAD = (
    "candidates come from the target's lm_head: engines before vLLM 0.32 multiply by its raw weight and crash where it "
    "is quantized. Measure beside the target it will serve with"
)
_SELECTOR = "candidate_selector"
_CONVOLUTIONS = ("attention_conv", "mlp_conv")


def is_dflash2(reading: Reading) -> bool:
    """By the tensors, or by what the configuration says: either alone is a fault, which `dflash2_modules` notes."""
    return _is_claimed(reading) or any(name.startswith(f"{_SELECTOR}.") for name in reading.tensors)


def dflash2_modules(reading: Reading, sizes: Sizes, draft_vocab: int | None) -> list[Module]:
    """The convolutions' projections and the selector's, after a check of every tensor that DFlash2 adds."""
    _check_claim(reading)
    if draft_vocab is not None and draft_vocab != sizes.vocab:
        message = (
            f"is {draft_vocab}, vocab_size {sizes.vocab}: the engine does not map DFlash2's candidates to target ids"
        )
        reading.findings.add("malformed-config", "config.json: draft_vocab_size", message)
    taps, group, rank = _settings(reading)
    hidden = sizes.hidden
    if hidden % (group or 1):
        message = f"conv_group_size {group} does not divide hidden_size {hidden}"
        reading.findings.add("malformed-config", "config.json: dflash_config", message)
    reading.findings.raise_any()
    modules = []
    for number, prefix in reading.decoder_layers(sizes.layers).items():
        for convolution in _CONVOLUTIONS:
            name = f"{prefix}.{convolution}"
            reading.expect(f"{name}.base_kernel", (2, taps, hidden))
            reading.expect(f"{name}.kernel_projection.weight", (2 * taps * (hidden // group), hidden))
            modules.append(_projection(f"{name}.kernel_projection", f"layers.{{layer}}.{convolution}", number))
    for table in ("predecessor_codebook", "successor_codebook"):
        reading.expect(f"{_SELECTOR}.{table}", (sizes.vocab, rank))
    reading.expect(f"{_SELECTOR}.hidden_projection.weight", (rank, hidden))
    return modules


def _projection(name: str, path: str, layer: int) -> Module:
    return Module(name, (name,), (f"model.{path}.kernel_projection",), layer, keep=keep_reason(name))


def _settings(reading: Reading) -> tuple[int, int, int]:
    """Taps and group size of the convolutions, rank of the selector. speculators keeps them at the top level."""
    settings = reading.settings if reading.speculators else reading.settings.section("dflash_config")
    settings.required("selector_top_k")
    return (
        settings.required("conv_kernel_size"),
        settings.required("conv_group_size"),
        settings.required("selector_rank"),
    )


def _is_claimed(reading: Reading) -> bool:
    settings = reading.settings
    return ARCHITECTURE in settings.texts("architectures") or settings.text("speculators_model_type") == "dflash2"


def _check_claim(reading: Reading) -> None:
    if not _is_claimed(reading):
        where = "speculators_model_type" if reading.speculators else "architectures"
        message = f"the tensors hold a {_SELECTOR}, which the engine reads for {ARCHITECTURE} alone"
        reading.findings.add("malformed-config", f"config.json: {where}", message)
