"""Medusa: independent heads over the target's last state. Read from vLLM 0.32, models/medusa.py.

Recognised so that it can be refused by name: the engine builds its heads without a quantization config and drops
their scales silently.
"""

import re

from draftmill.plans import Family, Head
from draftmill_worker.checkpoint.drafter import Drafter
from draftmill_worker.checkpoint.families.reading import Reading
from draftmill_worker.checkpoint.families.settings import MAX_LAYERS

BLOCK = re.compile(r"(?:medusa_heads\.|blocks\.)?(\d{1,4})\.(?:layers\.)?(\d{1,4})\.(?:linear\.)?weight")


def read(reading: Reading) -> Drafter:
    settings = reading.settings
    layers = settings.natural("medusa_num_layers", 1) or settings.natural("num_hidden_layers", 1) or 1
    matches = {name: match for name in reading.tensors if (match := BLOCK.fullmatch(name))}
    for name in matches:
        if len(reading.tensors[name].shape) != 2:
            reading.findings.add("shape-mismatch", name, "a head's weight has two dimensions")
    _check_heads(reading, {int(match[1]) for match in matches.values()})
    reading.findings.raise_any()
    hidden = next(reading.tensors[name].shape[1] for name in matches)
    tables = [reading.tensors[name].shape[0] for name, match in matches.items() if int(match[2]) == layers]
    return Drafter(
        family=Family.MEDUSA,
        dialect="medusa",
        head=Head.OWN,
        num_layers=layers,
        hidden_size=settings.natural("hidden_size", 1) or hidden,
        vocab_size=settings.natural("vocab_size", 1) or max(tables, default=0),
        draft_vocab_size=settings.natural("truncated_vocab_size", 1),
        target_layer_ids=None,
        block_size=None,
        mask_token_id=None,
        target_num_layers=None,
        config=reading.checkpoint.config,
        engine_class="Medusa",
        modules=(),
        lm_head_refusal="Medusa heads are built without a quantization config",
    )


def _check_heads(reading: Reading, stored: set[int]) -> None:
    promised = reading.settings.natural("medusa_num_heads", 1) or reading.settings.natural("num_heads", 1) or 0
    if promised > MAX_LAYERS:
        reading.findings.add("malformed-config", "config.json: medusa_num_heads", f"at most {MAX_LAYERS} are read")
        return
    for number in range(promised):
        if number not in stored:
            reading.findings.add("promised-layers-missing", f"head {number}", f"{promised} heads are promised")
