"""Packed matrices: that their parts fit each other and the original, and hold something."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from draftmill_worker.checkpoint.headers import TensorInfo
from draftmill_worker.heads.draft_head import MODULE
from draftmill_worker.heads.tensors import FLOATS, read_rows, steps
from draftmill_worker.heads.verify.registry import check
from draftmill_worker.heads.verify.view import View
from draftmill_worker.quantize.formats.pack_quantized import GROUP, PACKED, SCALE, SHAPE, unpack
from draftmill_worker.verify.registry import Result, skipped


@check("head-geometry", "packed words, scales and weight_shape fit each other, and the matrix they replace")
def geometry(view: View) -> Result:
    result = Result(evidence={"modules": 0})
    for group in view.plan.groups:
        for module in group.modules:
            packed = view.after.tensors.get(f"{module}.{PACKED}")
            if packed is None and module == MODULE:
                continue
            result.evidence["modules"] += 1
            _fits(view, module, group.bits, result)
    return result if view.plan.groups else skipped("no module was rewritten")


def _fits(view: View, module: str, bits: int, result: Result) -> None:
    parts = {suffix: view.after.tensors.get(f"{module}.{suffix}") for suffix in (PACKED, SCALE, SHAPE)}
    shape_of = parts[SHAPE]
    if any(info is None for info in parts.values()) or shape_of is None:
        result.blame(module, "has not all of weight_packed, weight_scale and weight_shape")
        return
    if shape_of.dtype != "I64" or shape_of.shape != (2,):
        result.blame(f"{module}.{SHAPE}", "I64 [2] expected")
        return
    rows, columns = (int(value) for value in view.read(f"{module}.{SHAPE}"))
    wanted = {PACKED: ("I32", (rows, columns * bits // 32)), SCALE: ("BF16", (rows, columns // GROUP))}
    for suffix, (dtype, shape) in wanted.items():
        info = view.after.tensors[f"{module}.{suffix}"]
        if (info.dtype, info.shape) != (dtype, shape):
            result.blame(info.name, f"{dtype} {list(shape)} by weight_shape", f"{info.dtype} {list(info.shape)}")
    original = view.before.tensors.get(f"{module}.weight")
    if original is not None and original.shape != (rows, columns):
        result.blame(f"{module}.{SHAPE}", f"the source has {list(original.shape)}", [rows, columns])
    scale = view.read(f"{module}.{SCALE}").float()
    if not bool((scale.isfinite() & (scale > 0)).all()):
        result.blame(f"{module}.{SCALE}", "scales must be finite and above zero")


@check("head-codes", "no rewritten row is zero by its codes where its original is not: packed zeros are not zero bytes")
def codes(view: View) -> Result:
    result = Result(evidence={})
    for module, info, columns, width in view.packed():
        empty = torch.cat(
            [
                torch.from_numpy(~unpack(part.numpy(), width, columns).any(axis=1))
                for part in _parts(view.variant / info.file, info)
            ]
        )
        result.evidence[module] = {"zero_rows": int(empty.sum()), "rows": len(empty)}
        known = _empty_before(view, module)
        if known is None and bool(empty.all()):
            result.blame(f"{module}.{PACKED}", "all codes are zero", len(empty))
        elif known is not None and bool((empty & ~known).any()):
            result.blame(f"{module}.{PACKED}", "rows of zeros that are none in the source", int((empty & ~known).sum()))
    return result if view.plan.groups else skipped("no module was rewritten")


def _parts(path: Path, info: TensorInfo) -> Iterator[Tensor]:
    return (read_rows(path, info, first, last) for first, last in steps(*info.shape))


def _empty_before(view: View, module: str) -> Tensor | None:
    """Rows of zeros in what the source has of the module; None where it has no such matrix."""
    original = view.before.tensors.get(f"{module}.weight")
    if original is None:
        original = next((tensor for name, tensor in view.before.tensors.items() if _may_be(name, module, view)), None)
    if original is None or original.dtype not in FLOATS or len(original.shape) != 2:
        return None
    return torch.cat([~part.any(dim=1) for part in _parts(view.source / original.file, original)])


def _may_be(name: str, module: str, view: View) -> bool:
    """A tied head was the embedding."""
    return view.plan.tied and module.endswith("lm_head") and module != MODULE and name.endswith("embed_tokens.weight")
