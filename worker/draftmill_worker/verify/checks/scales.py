"""Scales: finite and positive, shared where the engine fuses, and the value that plain torch gives for the source."""

from typing import TYPE_CHECKING

from draftmill.formats import Scale
from draftmill.reports import CheckStatus
from draftmill_worker.verify.reference import (
    ROWS_PER_SCALE,
    block_scales,
    cast_dtype,
    input_scale,
    numbers,
    scale_part,
    tensor_scale,
)
from draftmill_worker.verify.registry import Result, check
from draftmill_worker.verify.runtime import fused_layers, fused_sets, layout_of
from draftmill_worker.verify.scale_search import searched_scales
from draftmill_worker.verify.tensors import chunks, pieces, raw
from draftmill_worker.verify.view import Linear, View

if TYPE_CHECKING:
    import torch


@check(
    "scales-positive",
    reads="every scale tensor",
    after=("scales-complete", "values-finite"),
    proves="every scale is finite and above zero: 0 and NaN turn whole rows or blocks into nothing",
)
def scales_positive(view: View) -> Result:
    import torch

    result = Result(evidence={"scales": 0})
    low, high = float("inf"), 0.0
    for linear in view.linears:
        for scale in view.spec.scales:
            bad = 0
            for part in pieces(_scale(view, linear, scale)):
                values = numbers(view.plan.format, part)
                bad += int((~(torch.isfinite(values) & (values > 0))).sum())
                low = min(low, float(values.min()))
                high = max(high, float(values.max()))
                result.evidence["scales"] += len(values)
            if bad:
                result.blame(linear.tensor(scale.suffix), "zero, negative or not finite", bad)
    if not result.offenders:
        result.evidence |= {"smallest": low, "largest": high}
    return result


@check(
    "fused-uniform",
    reads="plan, scales of sibling modules",
    after=("scales-positive",),
    proves="parts of a layer that the engine fuses are all quantized or none, and share their per-tensor scales",
)
def fused_uniform(view: View) -> Result:
    quantized = {linear.name: linear for linear in view.linears}
    modules = [tensor.name.removesuffix(".weight") for tensor in view.plan.tensors if tensor.name.endswith(".weight")]
    layout = layout_of(view.plan.family, view.settings)
    sets = fused_sets(modules, layout)
    result = Result(evidence={"groups": len(sets), "scales": view.plan.scales})
    for fused, parts in sorted(sets.items()):
        inside = [part for part in parts if part in quantized]
        if not inside:
            continue
        missing = len(parts) < len(fused_layers(layout)[fused.rpartition(".")[2]])
        if missing or len(inside) < len(parts):
            result.blame(fused, "parts are missing" if missing else "only some parts are quantized", inside)
        elif view.plan.scales == "fused":
            _compare_shared(view, result, fused, [quantized[part] for part in parts])
    if view.plan.scales == "reference" and not result.offenders:
        result.status = CheckStatus.WARN
        result.evidence["warning"] = "parts have scales of their own; an engine that fuses them loses accuracy"
    return result


def _compare_shared(view: View, result: Result, fused: str, linears: list[Linear]) -> None:
    if {linear.plan.group for linear in linears} != {fused}:
        result.blame(fused, "the plan groups the parts otherwise", [linear.plan.group for linear in linears])
    for scale in view.spec.scales:
        if scale.per in ("tensor", "activation"):
            values = {linear.name: _scale(view, linear, scale).float().item() for linear in linears}
            if len(set(values.values())) > 1:
                result.blame(f"{fused}: {scale.suffix}", "parts differ", values)


@check(
    "scale-values",
    reads="scales of the variant, quantized weights of the source",
    after=("fused-uniform",),
    proves="every scale is what plain torch computes from the source's amax, bit for bit; searched block scales are "
    "those of least squared error",
)
def scale_values(view: View) -> Result:
    result = Result(evidence={"scales": 0, "sampled": not view.deep})
    for linear in view.linears:
        for scale in view.spec.scales:
            differing, compared = _differing(view, linear, scale)
            result.evidence["scales"] += compared
            if differing:
                result.blame(linear.tensor(scale.suffix), "differs from plain torch's value", differing)
    return result


def _differing(view: View, linear: Linear, scale: Scale) -> tuple[int, int]:
    """(scales that differ, scales compared) for one scale tensor of one module."""
    found = _scale(view, linear, scale)
    if scale.per == "activation":
        return int((found != input_scale(view.plan.format)).sum()), found.numel()
    if scale.per == "tensor":
        return int((found != tensor_scale(view.plan.format, view.top(linear))).sum()), found.numel()
    weight = view.before(linear.plan)
    differing = compared = 0
    for part in chunks(tuple(weight.shape), view.deep, ROWS_PER_SCALE.get(view.plan.format, 1)):
        rows = weight[part].to(cast_dtype(weight, view.plan.dtype))
        scales = searched_scales if view.plan.nvfp4_scale_search else block_scales
        wanted = scales(view.plan.format, rows, view.top(linear))
        differing += int((raw(wanted) != raw(found[scale_part(view.plan.format, part)])).sum())
        compared += wanted.numel()
    return differing, compared


def _scale(view: View, linear: Linear, scale: Scale) -> "torch.Tensor":
    return view.after(linear.plan, linear.tensor(scale.suffix))
