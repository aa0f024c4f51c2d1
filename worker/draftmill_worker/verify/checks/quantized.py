"""Quantized weights against the source they came from."""

from statistics import fmean
from typing import TYPE_CHECKING

from draftmill.formats import Scale
from draftmill_worker.quantize.dequantize import dequantize
from draftmill_worker.verify.reference import (
    INTEGER_BITS,
    NVFP4_KINDS,
    ROWS_PER_SCALE,
    block_scales,
    cast_dtype,
    half_steps,
    numbers,
    scale_part,
    steps,
)
from draftmill_worker.verify.registry import Result, check
from draftmill_worker.verify.scale_search import block_errors, columns_of
from draftmill_worker.verify.tensors import chunks, pieces
from draftmill_worker.verify.view import Linear, View

if TYPE_CHECKING:
    import torch

# What fp32 loses in w / scale and code * scale, relative to a step.
ROUNDING = 1 + 2.0**-16


@check(
    "codes-not-zero",
    reads="codes of every quantized weight",
    after=("dtypes-and-shapes",),
    proves="no weight became all zeros, unless it was zero in the source",
)
def codes_not_zero(view: View) -> Result:
    result = Result(evidence={"modules": len(view.linears), "zero_in_source": 0})
    for linear in view.linears:
        codes = view.after(linear.plan, linear.tensor(view.spec.weight_suffix))
        if any(bool(_magnitudes(view, part).any()) for part in pieces(codes)):
            continue
        if any(bool(part.any()) for part in pieces(view.before(linear.plan))):
            result.blame(linear.tensor(view.spec.weight_suffix), "every code is zero")
        else:
            result.evidence["zero_in_source"] += 1
    return result


def _magnitudes(view: View, codes: "torch.Tensor") -> "torch.Tensor":
    """Zero where the code is: without sign bits, as negative zero is zero, or without what integers are stored with."""
    import torch

    if view.plan.format in INTEGER_BITS:
        return codes.view(torch.uint8) ^ {4: 0x88, 8: 0x80}[INTEGER_BITS[view.plan.format]]
    return codes.view(torch.uint8) & (0x77 if view.plan.format in NVFP4_KINDS else 0x7F)


@check(
    "dequantized-error",
    reads="quantized weights and scales of the variant, weights of the source",
    after=("codes-not-zero", "scale-values"),
    proves="every dequantized element is as near to the source as the format's rounding allows",
)
def dequantized_error(view: View) -> Result:
    result = Result(evidence={"modules": len(view.linears), "elements": 0, "worst_relative_rms": 0.0})
    found, plain = [], []
    for linear in view.linears:
        outside, elements, relative = _errors(view, linear)
        result.evidence["elements"] += elements
        if relative > result.evidence["worst_relative_rms"]:
            result.evidence |= {"worst_relative_rms": round(relative, 6), "worst": linear.name}
        if outside:
            result.blame(linear.tensor(view.spec.weight_suffix), "elements off by more than rounding", outside)
        if view.plan.nvfp4_scale_search and relative:
            found.append(relative**2)
            plain.append(_plain_error(view, linear))
    if found:
        result.evidence |= {"relative_mse": fmean(found), "plain_relative_mse": fmean(plain)}
    return result


def _plain_error(view: View, linear: Linear) -> float:
    """||Q(w) - w||^2 / ||w||^2 of one module, had its block scales been those of plain max."""
    weight, second = view.before(linear.plan), view.after(linear.plan, linear.tensor("weight_scale_2"))
    error_square = weight_square = 0.0
    for part in chunks(tuple(weight.shape), view.deep):
        rows = weight[part].to(cast_dtype(weight, view.plan.dtype))
        blocks = columns_of(rows)
        scales = block_scales(view.plan.format, rows, view.top(linear)).flatten().float() * second
        error_square += float(block_errors(blocks, scales).sum())
        weight_square += float(blocks.double().square().sum())
    return error_square / weight_square


def _errors(view: View, linear: Linear) -> tuple[int, int, float]:
    """(elements beyond the bound, elements compared, ||error|| / ||weight||) of one module."""
    import torch

    weight = view.before(linear.plan)
    stored = {
        suffix: view.after(linear.plan, linear.tensor(suffix))
        for suffix in (view.spec.weight_suffix, *(scale.suffix for scale in view.spec.scales))
    }
    outside = elements = 0
    error_square = weight_square = 0.0
    for part in chunks(tuple(weight.shape), view.deep, ROWS_PER_SCALE.get(view.plan.format, 1)):
        rows = weight[part].to(cast_dtype(weight, view.plan.dtype)).float()
        pieces = _cut(view, stored, part)
        step = _steps(view, pieces, rows.shape)
        error = (dequantize(view.plan.format, pieces) - rows).abs()
        allowed = half_steps(view.plan.format, rows / step) * step
        outside += int(torch.count_nonzero(error > allowed * ROUNDING))
        elements += rows.numel()
        error_square += float(torch.linalg.vector_norm(error)) ** 2
        weight_square += float(torch.linalg.vector_norm(rows)) ** 2
    return outside, elements, (error_square / weight_square) ** 0.5 if weight_square else 0.0


def _cut(view: View, stored: "dict[str, torch.Tensor]", part: slice) -> "dict[str, torch.Tensor]":
    """What belongs to rows `part`: a weight's rows, scales of rows or blocks, scales of the tensor whole."""
    ranges = {scale.suffix: scale_part(view.plan.format, part) for scale in view.spec.scales if _per_row(scale)}
    ranges[view.spec.weight_suffix] = part
    return {suffix: values[ranges[suffix]] if suffix in ranges else values for suffix, values in stored.items()}


def _per_row(scale: Scale) -> bool:
    return scale.per in ("channel", "block")


def _steps(view: View, pieces: "dict[str, torch.Tensor]", shape: "torch.Size") -> "torch.Tensor":
    """The scale of each element, fp32, from what is stored."""
    scale = numbers(view.plan.format, pieces["weight_scale"])
    if view.plan.format in NVFP4_KINDS:
        scale = scale * pieces["weight_scale_2"]
    return steps(view.plan.format, scale, shape)
