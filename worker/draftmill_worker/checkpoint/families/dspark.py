"""DSpark: DFlash's stack, a Markov head over the token before, and a confidence head.

Read from vLLM 0.32, models/qwen3_dspark.py: lm_head and confidence_head are built without a quantization config,
markov_w2 with it.
"""

from draftmill.plans import Family
from draftmill_worker.checkpoint.drafter import Drafter, Module
from draftmill_worker.checkpoint.families import gemma4_dspark
from draftmill_worker.checkpoint.families.dflash import NO_QUANT_CONFIG, BlockDrafter
from draftmill_worker.checkpoint.families.reading import Reading, keep_reason

_CLASSES = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel")


def read(reading: Reading) -> Drafter:
    if gemma4_dspark.ARCHITECTURE in reading.settings.texts("architectures"):
        return gemma4_dspark.read(reading)
    block = BlockDrafter(reading)
    settings, sizes = reading.settings, block.sizes
    rank = settings.required("markov_rank")
    reading.findings.raise_any()
    reading.expect_rows("markov_head.markov_w1.weight", sizes.vocab, rank, "vocab_size")
    reading.expect_rows("markov_head.markov_w2.weight", block.draft_vocab or sizes.vocab, rank, "draft_vocab_size")
    if any(name.startswith("confidence_head.") for name in reading.tensors):
        width = sizes.hidden + (rank if settings.flag("confidence_head_with_markov") else 0)
        reading.expect("confidence_head.proj.weight", (1, width))
    elif settings.flag("enable_confidence_head"):
        reading.findings.add("missing-tensors", "confidence_head.proj.weight", "enable_confidence_head is true")
    if not set(settings.texts("architectures")) & set(_CLASSES) and not reading.speculators:
        reading.warnings.append(
            f"architectures {list(settings.texts('architectures'))}: vLLM serves these tensors as {_CLASSES[0]}"
        )
    name = "markov_head.markov_w2"
    markov = Module(name, (name,), (f"model.{name}",), keep=keep_reason(name))
    return block.drafter(Family.DSPARK, "Qwen3DSparkForCausalLM", head_keep=NO_QUANT_CONFIG, extra=[markov])
