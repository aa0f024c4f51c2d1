"""Embeddings and the MTP block in int8, rounded: what needs no calibration, beside a head that had one."""

import re
from collections.abc import Sequence
from pathlib import Path

from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.checkpoint.headers import TensorInfo
from draftmill_worker.heads.grid import Grid, round_to_nearest
from draftmill_worker.heads.quantize import check_shape, outputs, put
from draftmill_worker.heads.tensors import FLOATS, read_rows, steps
from draftmill_worker.quantize.formats.pack_quantized import SHAPE, stored_shape
from draftmill_worker.quantize.writer import WeightWriter

_EMBEDDING = re.compile(r"^(?!mtp\.)(?:[\w.]+\.)?embed_tokens\.weight$")
_BLOCK = re.compile(r"^mtp\.(?!.*(?:embed_tokens|draft_lm_head|lm_head)).*\.weight$")
MTP = (r"re:mtp\.(?!draft_lm_head).*",)
"""The MTP block's linears as the engine names them; its draft head goes with the head."""
# They build their embedding without a quantization config in vLLM 0.32, and would not find its weight.
_PLAIN_EMBEDDINGS = ("Qwen3_5", "Qwen3Next")


def embeddings(checkpoint: Checkpoint) -> tuple[TensorInfo, ...]:
    """ProblemError("head-refused") for a model whose engine class reads no quantized embedding, or without one."""
    names = checkpoint.config.get("architectures")
    architectures = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    if any(name.startswith(_PLAIN_EMBEDDINGS) for name in architectures):
        message = f"vLLM 0.32 builds the embedding of {architectures[0]} without a quantization config"
        raise ProblemError("head-refused", message, [Offender(where="head.embeddings", message=message)])
    return _found(checkpoint, _EMBEDDING, "head.embeddings")


def block(checkpoint: Checkpoint) -> tuple[TensorInfo, ...]:
    """The MTP block's matrices. ProblemError("head-refused") without any."""
    return _found(checkpoint, _BLOCK, "head.mtp")


def _found(checkpoint: Checkpoint, pattern: re.Pattern[str], where: str) -> tuple[TensorInfo, ...]:
    found = [tensor for name, tensor in checkpoint.tensors.items() if pattern.match(name) and len(tensor.shape) == 2]
    odd = [tensor for tensor in found if tensor.dtype not in FLOATS]
    if odd or not found:
        offenders = [Offender(where=tensor.name, message=f"is {tensor.dtype} already") for tensor in odd]
        raise ProblemError(
            "head-refused",
            f"{where}: there is nothing to round",
            offenders or [Offender(where=where, message="no tensor")],
        )
    for tensor in found:
        check_shape(tensor)
    return tuple(found)


def round_all(folder: Path, tensors: Sequence[TensorInfo], bits: int, out: Path) -> None:
    """Every matrix in integers, in the new file `out`. ProblemError("non-finite-weights")."""
    modules = {tensor.name.removesuffix(".weight"): tensor for tensor in tensors}
    written = [output for name, tensor in modules.items() for output in outputs(name, _shape(tensor), bits)]
    with WeightWriter(out, written, fsync=False) as writer:
        for name, tensor in modules.items():
            for first, last in steps(*_shape(tensor)):
                weight = read_rows(folder / tensor.file, tensor, first, last)
                if not bool(weight.isfinite().all()):
                    offender = Offender(where=tensor.name, message="NaN or Inf")
                    raise ProblemError("non-finite-weights", f"{tensor.name} holds NaN or Inf", [offender])
                put(writer, name, first, round_to_nearest(weight, Grid(bits)), bits)
            writer.put(f"{name}.{SHAPE}", 0, stored_shape(tensor.shape))
        writer.finish()


def _shape(tensor: TensorInfo) -> tuple[int, int]:
    return tensor.shape[0], tensor.shape[1]
