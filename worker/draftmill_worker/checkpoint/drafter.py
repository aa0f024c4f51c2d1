"""A drafter: what a checkpoint's tensors and configuration say together, and how an engine builds it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftmill.plans import Family, Head
from draftmill_worker.checkpoint.headers import TensorInfo


@dataclass(frozen=True)
class Module:
    """One module with a weight matrix, as the engine builds it: several checkpoint modules may be fused into it."""

    name: str
    """In checkpoint name space; by the fused name where modules are fused: `layers.0.self_attn.qkv_proj`."""
    members: tuple[str, ...]
    """Checkpoint modules whose weights it holds; none where the checkpoint stores no weight for it."""
    runtime: tuple[str, ...]
    """Names the engine asks its quantization config for, with `{layer}` where the layer's number goes."""
    layer: int | None = None
    """Number of the draft layer it is in, from 0."""
    keep: str | None = None
    """Why it is never quantized; None for a module that can be."""
    opt_in: bool = False
    """Quantized only when the caller asks for it."""
    plain_under: tuple[str, ...] = ()
    """Quantization methods under which the engine builds it unquantized, whatever the checkpoint holds."""

    @property
    def fused(self) -> bool:
        return len(self.members) > 1


@dataclass(frozen=True)
class Target:
    """The target whose checkpoint holds the drafter: everything in it but the drafter stays as it is."""

    block: frozenset[str]
    """Names of the drafter's tensors; all others are the target's."""
    patterns: tuple[str, ...]
    """Of all its modules with a weight matrix, for `ignore`: by checkpoint and by run-time names."""

    def written_files(self, tensors: Mapping[str, TensorInfo]) -> frozenset[str]:
        """Those that hold tensors of the drafter; all others go into a variant whole."""
        return frozenset(tensors[name].file for name in self.block)


@dataclass(frozen=True)
class Existing:
    """What of a drafter is quantized already, all of it in one format."""

    modules: tuple[str, ...]
    """Checkpoint modules, without `.weight`."""
    tensors: frozenset[str]
    """Their weights and scales, by name."""
    ignore: tuple[str, ...]
    """Exclusions that its configuration lists."""


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
    """Rows of the draft head where the configuration names them."""
    target_layer_ids: tuple[int, ...] | None
    """As the configuration counts them: from 0 for dflash and dspark, engine's auxiliary ids for eagle3."""
    block_size: int | None
    mask_token_id: int | None
    target_num_layers: int | None
    """Decoder layers of the target, where the configuration says so."""
    config: dict[str, Any]
    """The original configuration."""
    engine_class: str
    """vLLM's class for it."""
    modules: tuple[Module, ...]
    """Every module with a weight matrix, stored or built, in checkpoint order."""
    offset_layers: bool = False
    """True where the engine counts draft layers on from the target's last one."""
    engine_offsets_ignore: bool = False
    """True where the engine itself adds that offset to bare `layers.N` patterns of `ignore`."""
    lm_head_refusal: str | None = None
    """Why lm_head cannot be quantized; None when it can."""
    float32_modules: tuple[str, ...] = ()
    """Modules the engine computes in fp32: stored fp32 stays."""
    warnings: tuple[str, ...] = field(default=())
    existing: Existing | None = None
    """Where the rest is to be quantized beside it."""
    target: Target | None = None
    """Of a drafter that lies in its target's checkpoint."""

    @property
    def min_target_layers(self) -> int:
        """The fewest decoder layers the target can have, given the layers the drafter taps."""
        # EAGLE3's ids count states, of which there is one more than layers; the others count layers from 0.
        first = 0 if self.family is Family.EAGLE3 else 1
        return self.target_num_layers or max(self.target_layer_ids or (0,)) + first or 1
