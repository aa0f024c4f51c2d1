"""What can be kept or quantized on its own: a fused set, or a module that is not fused."""

import math
from dataclasses import dataclass
from glob import escape

from draftmill.plans import Fate, Plan, TensorPlan
from draftmill_worker.checkpoint.headers import DTYPE_BYTES


@dataclass(frozen=True)
class Unit:
    name: str
    weights: tuple[str, ...]
    saved_bytes: int
    """What quantizing it saves, against the tensors kept as the plan's dtype has them."""


def units(plan: Plan) -> tuple[Unit, ...]:
    """The plan's quantized units, in its order."""
    sets: dict[str, list[TensorPlan]] = {}
    for tensor in plan.tensors:
        if tensor.fate is Fate.QUANTIZED:
            sets.setdefault(tensor.group or tensor.name.removesuffix(".weight"), []).append(tensor)
    return tuple(
        Unit(name, tuple(tensor.name for tensor in members), sum(_saved(plan, tensor) for tensor in members))
        for name, members in sets.items()
    )


def _saved(plan: Plan, tensor: TensorPlan) -> int:
    kept = tensor.dtype if plan.dtype == "keep" else "BF16"
    written = sum(math.prod(output.shape) * DTYPE_BYTES[output.dtype] for output in tensor.outputs)
    return math.prod(tensor.shape) * DTYPE_BYTES[kept] - written


def patterns(kept: tuple[Unit, ...]) -> tuple[str, ...]:
    """Exclude patterns that keep these units and nothing else."""
    return tuple(escape(weight) for unit in kept for weight in unit.weights)
