"""Plans of synthetic checkpoints, and the files that ModelOpt and torch would make of them."""

from pathlib import Path

import torch
from safetensors import safe_open

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Fate, Plan, TensorPlan
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.quantize.packing import fused_sets
from draftmill_worker.quantize.plan import make_plan
from tests.unit.quantize.modelopt_reference import modelopt_tensors

CAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def plan_for(source: Path, format: Format, **options: object) -> Plan:
    checkpoint = open_checkpoint(source)
    return make_plan(checkpoint, detect(checkpoint), format, QuantizeOptions.model_validate(options))


def stored(folder: Path, file: str) -> dict[str, torch.Tensor]:
    with safe_open(folder / file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 -- not a mapping


def expected_files(source: Path, plan: Plan) -> dict[str, dict[str, torch.Tensor]]:
    """Tensors by file: ModelOpt's for what is quantized, fused where the plan says so, torch's for what is cast."""
    files = {tensor.file for tensor in plan.tensors}
    found = {file: stored(source, file) for file in files}
    made: dict[str, dict[str, torch.Tensor]] = {file: {} for file in files}
    for tensor in plan.tensors:
        if tensor.fate is Fate.KEPT:
            made[tensor.file][tensor.name] = found[tensor.file][tensor.name]
        elif tensor.fate is Fate.CAST:
            made[tensor.file][tensor.name] = found[tensor.file][tensor.name].to(CAST[plan.dtype])
    for members in fused_sets(plan):
        weights = [_cast(found[member.file][member.name], plan) for member in members]
        for member, tensors in zip(members, modelopt_tensors(weights, plan.format, fuse=len(members) > 1), strict=True):
            made[member.file] |= {_beside(member, suffix): value for suffix, value in tensors.items()}
    return made


def _cast(weight: torch.Tensor, plan: Plan) -> torch.Tensor:
    return weight if plan.dtype == "keep" else weight.to(CAST[plan.dtype])


def _beside(tensor: TensorPlan, suffix: str) -> str:
    return tensor.name.removesuffix("weight") + suffix
