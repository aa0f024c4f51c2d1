"""The decoder layer that every family but Medusa is made of: its tensors and the modules the engine fuses them into."""

from draftmill_worker.checkpoint.drafter import Module
from draftmill_worker.checkpoint.families.reading import Reading
from draftmill_worker.checkpoint.families.settings import Sizes

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


def check_layer(reading: Reading, prefix: str, sizes: Sizes, in_size: int, norms: tuple[str, ...]) -> None:
    """Notes missing and misshapen tensors of one layer. `in_size` is what q/k/v take; `norms` are [hidden] or
    [head_dim] vectors, the latter under `self_attn`."""
    q, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    shapes = {
        "self_attn.q_proj": (q, in_size),
        "self_attn.k_proj": (kv, in_size),
        "self_attn.v_proj": (kv, in_size),
        "self_attn.o_proj": (sizes.hidden, q),
        "mlp.gate_proj": (sizes.intermediate, sizes.hidden),
        "mlp.up_proj": (sizes.intermediate, sizes.hidden),
        "mlp.down_proj": (sizes.hidden, sizes.intermediate),
    }
    for name, shape in shapes.items():
        reading.expect(f"{prefix}.{name}.weight", shape)
        reading.expect(f"{prefix}.{name}.bias", shape[:1], required=False)
    for name in norms:
        reading.expect(f"{prefix}.{name}.weight", (sizes.head_dim if "self_attn" in name else sizes.hidden,))


def layer_modules(
    prefix: str, number: int, root: str, keep_qkv: str | None = None, qkv_runtime: tuple[str, ...] = ()
) -> list[Module]:
    """The four linear modules of a layer. `root` is the runtime name of the stack, with its dot."""

    def module(name: str, parts: tuple[str, ...], keep: str | None = None, runtime: tuple[str, ...] = ()) -> Module:
        paths = tuple(f"{root}layers.{{layer}}.{path}" for path in (*runtime, name))
        return Module(f"{prefix}.{name}", tuple(f"{prefix}.{part}" for part in parts), paths, number, keep)

    return [
        module("self_attn.qkv_proj", QKV, keep_qkv, qkv_runtime),
        module("self_attn.o_proj", ("self_attn.o_proj",)),
        module("mlp.gate_up_proj", GATE_UP),
        module("mlp.down_proj", ("mlp.down_proj",)),
    ]
