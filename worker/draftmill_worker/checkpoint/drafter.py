"""A drafter: what a checkpoint's tensors and configuration say together, normalised."""

from dataclasses import dataclass, field
from typing import Any

from draftmill.plans import Family, Head


@dataclass(frozen=True)
class Drafter:
    family: Family
    dialect: str
    """Which of the family's layouts was read, such as `dflash_config nested`."""
    head: Head
    num_layers: int
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int | None
    """Rows of the draft head where it has a vocabulary of its own size."""
    target_layer_ids: tuple[int, ...] | None
    block_size: int | None
    mask_token_id: int | None
    target_num_layers: int | None
    """Decoder layers of the target, where the configuration says so. The engine offsets draft layers by it."""
    config: dict[str, Any]
    """The original configuration."""
    warnings: tuple[str, ...] = field(default=())
