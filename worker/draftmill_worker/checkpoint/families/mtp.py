"""MTP: a block of further layers inside the target's own checkpoint, which predicts the tokens after the next one.

It takes the embedding of the newest token and the target's last hidden state. Embedding and head are the target's.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from draftmill.plans import Family, Head
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.drafter import Drafter, Module, Target
from draftmill_worker.checkpoint.families.mtp_dialects import DIALECTS, PREFIX, Dialect
from draftmill_worker.checkpoint.families.mtp_names import block_tensors, layers_stored, target_patterns
from draftmill_worker.checkpoint.families.reading import UNKNOWN, Reading, keep_reason
from draftmill_worker.checkpoint.families.settings import Settings, read_sizes

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_LINEARS = frozenset({"o_proj", "down_proj"})
_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,6})\.")
_EXPERT = re.compile(r"(.*\.experts)\.")
_TARGETS = "the engine uses the target's"
_PLAIN = {
    "embed_tokens": _TARGETS,
    "shared_head.head": _TARGETS,
    "mlp.gate": "router: the engine builds it without a quantization configuration",
    "mlp.shared_expert_gate": "router: the engine builds it without a quantization configuration",
}
_EXPERTS = "experts: the engine fuses them all into one module; kept in this build"


def dialect_of(config: Mapping[str, Any]) -> Dialect | None:
    """The dialect of a target whose architecture can hold an MTP block. The configuration may be of any shape."""
    named = config.get("architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    return next((dialect for dialect in DIALECTS if any(name in dialect.engine_classes for name in names)), None)


def read(reading: Reading, dialect: Dialect) -> Drafter:
    """The block in the target's checkpoint. Raises `family-not-quantizable` for what no engine serves so, and
    `unknown-family` for what this build does not plan."""
    settings = _text(reading.settings)
    sizes = read_sizes(settings)
    count = _promised(settings, dialect)
    reading.findings.raise_any()
    stored = layers_stored(reading.tensors, dialect, sizes.layers)
    if stored and dialect.unread is not None:
        raise ProblemError("unknown-family", dialect.unread, [_architecture(reading, dialect.unread)])
    _check_promise(reading, dialect, sizes.layers, count, stored)
    reading.findings.raise_any()
    if dialect.refusal is not None:
        raise ProblemError("family-not-quantizable", dialect.refusal, [_architecture(reading, dialect.refusal)])
    block = frozenset(block_tensors(reading.tensors, dialect, sizes.layers))
    first = sizes.layers if dialect.past_last else 0
    _check_tensors(reading, dialect, range(first, first + count), settings)
    architecture = next(name for name in reading.settings.texts("architectures") if name in dialect.engine_classes)
    renames = dialect.renames_of(architecture)
    modules = [*_modules(reading, dialect, block, range(first, first + count)), *_heads(dialect, first, count)]
    return Drafter(
        family=Family.MTP,
        dialect=dialect.name,
        head=Head.BORROWED,
        num_layers=count,
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab,
        draft_vocab_size=None,
        target_layer_ids=None,
        block_size=None,
        mask_token_id=None,
        target_num_layers=sizes.layers,
        config=reading.checkpoint.config,
        engine_class=dialect.engine_classes[architecture],
        modules=tuple(modules),
        lm_head_refusal="its head is the target's, which stays as it is",
        warnings=tuple(reading.warnings),
        target=Target(block, target_patterns(reading.tensors, block, renames)),
    )


def _text(settings: Settings) -> Settings:
    """The language model's settings, which multimodal targets nest."""
    inner = settings.section("text_config")
    return inner if inner.values else settings


def _promised(settings: Settings, dialect: Dialect) -> int:
    count = settings.natural(dialect.key)
    return dialect.default if count is None else count


def _architecture(reading: Reading, message: str) -> Offender:
    named = list(reading.settings.texts("architectures"))
    return Offender(where="config.json: architectures", message=message, value=list(named))


def _check_promise(reading: Reading, dialect: Dialect, layers: int, count: int, stored: Iterable[int]) -> None:
    """An engine that finds no tensors for a promised layer serves one of uninitialised memory."""
    first = layers if dialect.past_last else 0
    found = set(stored)
    if not found and not count:
        message = f"a target without an MTP block: {dialect.key} promises none, and none is stored"
        raise ProblemError("unknown-family", message, [_architecture(reading, message)])
    where = "model.layers" if dialect.past_last else "mtp.layers"
    for number in range(first, first + count):
        if number not in found:
            message = f"{dialect.key} is {count}; {where}.{number} is not in the weights"
            reading.findings.add("promised-layers-missing", f"{where}.{number}", message)
    for number in sorted(found - set(range(first, first + count))):
        message = f"is stored; {dialect.key} is {count}, so that no engine reads it"
        reading.findings.add("shape-mismatch", f"{where}.{number}", message)


def _check_tensors(reading: Reading, dialect: Dialect, numbers: range, settings: Settings) -> None:
    """Notes what the block lacks. Experts are counted by their router alone: layouts of them differ."""
    sizes = read_sizes(settings)
    hidden, q, kv = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    gated = dialect.gated and settings.flag("attn_output_gate") is not False
    shapes = {
        "q_proj.weight": (q * (2 if gated else 1), hidden),
        "k_proj.weight": (kv, hidden),
        "v_proj.weight": (kv, hidden),
        "o_proj.weight": (hidden, q),
    }
    root = _root(dialect)
    for number in numbers:
        layer = f"{root}layers.{number}"
        for name, shape in shapes.items():
            reading.expect(f"{layer}.{dialect.attention}.{name}", shape)
        for norm in dialect.layer_norms:
            reading.expect(f"{layer}.{norm}.weight", (hidden,))
        if f"{layer}.mlp.gate.weight" not in reading.tensors:
            for name in ("gate_proj", "up_proj"):
                reading.expect(f"{layer}.mlp.{name}.weight", (sizes.intermediate, hidden))
            reading.expect(f"{layer}.mlp.down_proj.weight", (hidden, sizes.intermediate))
        reading.expect(f"{root}{dialect.join.name}.weight".replace("{layer}", str(number)), (hidden, 2 * hidden))
        for norm in dialect.norms:
            reading.expect(f"{root}{norm}.weight".replace("{layer}", str(number)), (hidden,))


def _root(dialect: Dialect) -> str:
    return "model." if dialect.past_last else PREFIX


def _modules(reading: Reading, dialect: Dialect, block: frozenset[str], numbers: range) -> Iterator[Module]:
    """The block's modules with a weight matrix, in checkpoint order, siblings as the engine fuses them."""
    joins = {f"{_root(dialect)}{dialect.join.name}".replace("{layer}", str(number)) for number in numbers}
    done: set[str] = set()
    for name in (name for name in reading.tensors if name in block):
        module = name.removesuffix(".weight")
        if len(reading.tensors[name].shape) < 2 or module in done:
            continue
        members, fused = _siblings(module, block)
        done.update(members)
        match = _LAYER.search(module)
        layer = None if match is None else int(match[1])
        if module in joins:
            join = dialect.join
            yield Module(fused, members, (fused,), layer, keep=join.keep, plain_under=join.plain_under)
        else:
            yield Module(fused, members, (fused,), layer, keep=_keep(reading, module, module != name))


def _heads(dialect: Dialect, first: int, count: int) -> Iterator[Module]:
    """Heads as the engine builds them before it puts the target's in their place, stored or not."""
    yield Module("lm_head", (), ("lm_head",), keep=_TARGETS)
    if dialect.past_last:
        for number in range(first, first + count):
            yield Module(f"model.layers.{number}.head", (), (f"model.layers.{number}.head",), number, keep=_TARGETS)


def _siblings(module: str, block: frozenset[str]) -> tuple[tuple[str, ...], str]:
    """The checkpoint modules that the engine builds as one with `module`, and its name for them."""
    experts = _EXPERT.match(module)
    if experts is not None:
        return tuple(name.removesuffix(".weight") for name in sorted(block) if name.startswith(experts[0])), experts[1]
    parent, _, last = module.rpartition(".")
    for fused, parts in _FUSED.items():
        names = tuple(f"{parent}.{part}" for part in parts)
        if last in parts and all(f"{name}.weight" in block for name in names):
            return names, f"{parent}.{fused}"
    return (module,), module


def _keep(reading: Reading, module: str, is_weight: bool) -> str | None:
    """Why a module is kept; None for a linear layer that the engine reads quantized."""
    if ".experts." in module:
        return _EXPERTS
    plain = next((reason for end, reason in _PLAIN.items() if module.endswith("." + end)), None)
    if plain is not None:
        return plain
    last = module.rpartition(".")[2]
    if is_weight and (last in _LINEARS or any(last in parts for parts in _FUSED.values())):
        return None
    reason = keep_reason(module)
    if reason == UNKNOWN:
        reading.warnings.append(f"{module}: no module of this family; it is kept")
    return reason
