"""Tensors that are not quantized: integers and untouched floats bit for bit, casts as torch casts, all finite."""

from typing import TYPE_CHECKING

from draftmill.plans import TensorPlan
from draftmill_worker.checkpoint.headers import DTYPE_BYTES, FLOAT_DTYPES
from draftmill_worker.verify.registry import Result, check
from draftmill_worker.verify.tensors import chunks, pieces, raw
from draftmill_worker.verify.view import View

if TYPE_CHECKING:
    import torch


@check(
    "values-finite",
    reads="every floating tensor of the variant, codes and scales too",
    after=("dtypes-and-shapes",),
    proves="no NaN and no Inf is stored",
)
def values_finite(view: View) -> Result:
    result = Result(evidence={"tensors": 0, "values": 0})
    for name, (output, tensor) in view.expected.items():
        # An inf or NaN of eight bits is a code of its own; torch knows both.
        if output.dtype not in FLOAT_DTYPES and output.dtype not in {"F8_E4M3", "F8_E5M2"}:
            continue
        bad = 0
        for part in pieces(view.after(tensor, name), view.deep):
            bad += _non_finite(part)
            result.evidence["values"] += len(part)
        result.evidence["tensors"] += 1
        if bad:
            result.blame(name, "NaN or Inf", bad)
    return result


def _non_finite(part: "torch.Tensor") -> int:
    """NaN and Inf by their bits: the exponent is all ones, or in E4M3, which has no Inf, the mantissa too."""
    import torch

    bits, first = {
        torch.float8_e4m3fn: (torch.uint8, 0x7F),
        torch.float8_e5m2: (torch.uint8, 0x7C),
        torch.float16: (torch.int16, 0x7C00),
        torch.bfloat16: (torch.int16, 0x7F80),
        torch.float32: (torch.int32, 0x7F800000),
        torch.float64: (torch.int64, 0x7FF0000000000000),
    }[part.dtype]
    magnitudes = part.view(bits) & ((1 << (8 * part.element_size() - 1)) - 1)
    # Few tensors have any, and the largest is quicker to find than the number.
    return int((magnitudes >= first).sum()) if int(magnitudes.max()) >= first else 0


@check(
    "integers-identical",
    reads="integer and bool tensors of source and variant",
    after=("dtypes-and-shapes",),
    proves="maps such as d2t are the source's, byte for byte: a cast would point drafts at other tokens",
)
def integers_identical(view: View) -> Result:
    return _identical(view, [tensor for tensor in view.unquantized if tensor.dtype not in FLOAT_DTYPES])


@check(
    "untouched-identical",
    reads="floating tensors that keep their dtype, in source and variant",
    after=("values-finite",),
    proves="what is neither quantized nor cast is the source's, byte for byte",
)
def untouched_identical(view: View) -> Result:
    floats = [tensor for tensor in view.unquantized if tensor.dtype in FLOAT_DTYPES]
    return _identical(view, [tensor for tensor in floats if view.tensors[tensor.name].dtype == tensor.dtype])


def _identical(view: View, tensors: list[TensorPlan]) -> Result:
    import torch

    result = Result(evidence={"tensors": len(tensors), "bytes": 0, "sampled": not view.deep})
    for tensor in tensors:
        before, after = raw(view.before(tensor)), raw(view.after(tensor, tensor.name))
        differing = 0
        for part in chunks((len(before),), view.deep):
            result.evidence["bytes"] += part.stop - part.start
            if not torch.equal(before[part], after[part]):
                differing += int((before[part] != after[part]).sum())
        if differing:
            result.blame(tensor.name, "bytes differ from the source", differing)
    return result


@check(
    "casts-exact",
    reads="cast tensors of source and variant",
    after=("values-finite",),
    proves="a cast tensor is what torch makes of the source: round to nearest even, bit for bit",
)
def casts_exact(view: View) -> Result:
    import torch

    cast = [tensor for tensor in view.unquantized if view.tensors[tensor.name].dtype != tensor.dtype]
    result = Result(evidence={"tensors": len(cast), "values": 0, "sampled": not view.deep})
    for tensor in cast:
        before, after = view.before(tensor).flatten(), view.after(tensor, tensor.name).flatten()
        differing = 0
        for part in chunks((len(before),), view.deep):
            wanted = before[part].to(after.dtype)
            result.evidence["values"] += len(wanted)
            if not torch.equal(raw(wanted), raw(after[part])):
                bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[DTYPE_BYTES[view.tensors[tensor.name].dtype]]
                differing += int((wanted.view(bits) != after[part].view(bits)).sum())
        if differing:
            result.blame(tensor.name, f"values differ from torch's cast of {tensor.dtype}", differing)
    return result
