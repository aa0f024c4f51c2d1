"""Weight error of a built variant, in plain torch."""

from pathlib import Path

import torch
from safetensors import safe_open

from draftmill.plans import Fate, Plan, TensorPlan
from draftmill_worker.quantize.dequantize import dequantize

Squares = tuple[float, float]
"""||Q(w) - w||^2 and ||w||^2."""


def squares(source: Path, variant: Path, plan: Plan) -> dict[str, Squares]:
    """By quantized weight. In memory: one weight three times in fp32."""
    return {
        tensor.name: _squares(source / tensor.file, variant / tensor.file, plan, tensor)
        for tensor in plan.tensors
        if tensor.fate is Fate.QUANTIZED
    }


def _squares(source: Path, variant: Path, plan: Plan, tensor: TensorPlan) -> Squares:
    stem = tensor.name.removesuffix("weight")
    with safe_open(variant, framework="pt") as file:
        stored = {output.name.removeprefix(stem): file.get_tensor(output.name) for output in tensor.outputs}
    with safe_open(source, framework="pt") as file:
        weight = file.get_tensor(tensor.name).float()
    error = dequantize(plan.format, stored) - weight
    return float(torch.linalg.vector_norm(error)) ** 2, float(torch.linalg.vector_norm(weight)) ** 2


def relative(parts: list[Squares], total: float | None = None) -> float:
    """||error|| / ||weight|| over several weights; `total` is ||weight||^2 where more than these count."""
    whole = sum(weight for _, weight in parts) if total is None else total
    return float((sum(error for error, _ in parts) / whole) ** 0.5) if whole else 0.0
