"""A head in integers: some of its rows at a time from the source's file into a file of its own, judged on the way."""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from draftmill import heads
from draftmill.heads import HeadOptions, HeadReport
from draftmill.plans import OutputTensor
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.headers import TensorInfo
from draftmill_worker.heads.divergence import Divergence
from draftmill_worker.heads.gptq import gptq
from draftmill_worker.heads.grid import Grid, Quantized, round_to_nearest
from draftmill_worker.heads.hessian import hessian, inverse_factor
from draftmill_worker.heads.rows import Rows
from draftmill_worker.heads.source import HeadSource
from draftmill_worker.heads.tensors import raw, read_rows, steps
from draftmill_worker.quantize.formats.pack_quantized import GROUP, PACKED, SCALE, SHAPE, pack, stored_shape
from draftmill_worker.quantize.writer import WeightWriter

Progress = Callable[[int, int], None]
HELD_ROWS = 512
"""Of the held-out rows, evenly spaced, that heads are judged on."""
FLOORS = {4: 1e-6, 8: 1e-9}
"""Rounding a real head to so many bits costs more KL than this: where it does not, the rows say nothing of the head."""


def outputs(module: str, shape: tuple[int, int], bits: int) -> tuple[OutputTensor, ...]:
    """What is stored of a matrix [rows, columns]."""
    rows, columns = shape
    return (
        OutputTensor(name=f"{module}.{PACKED}", dtype="I32", shape=(rows, columns * bits // 32)),
        OutputTensor(name=f"{module}.{SCALE}", dtype="BF16", shape=(rows, columns // GROUP)),
        OutputTensor(name=f"{module}.{SHAPE}", dtype="I64", shape=(2,)),
    )


def quantize_head(
    source: HeadSource, options: HeadOptions, rows: Rows | None, out: Path, progress: Progress
) -> HeadReport:
    """Write the head of `source` in integers to the new file `out`, and say how far it is from the original.

    Memory follows some rows of the head and columns², not the head. ProblemError, and no file: head-refused,
    non-finite-weights, all-zero-weight, capture-invalid, capture-dead-columns, head-gate-failed.
    """
    info = source.tensor
    check_shape(info)
    if rows is None and options.method != "rtn":
        raise ProblemError("head-refused", f"{options.method} needs a capture to be calibrated with")
    if rows is not None and rows.hidden.shape[1] != info.shape[1]:
        message = f"captured rows have {rows.hidden.shape[1]} columns, the head {info.shape[1]}"
        raise ProblemError("capture-invalid", message)
    judge = None if rows is None else _Judge(rows, options)
    # One file, kept only when the gate is passed.
    with WeightWriter(out, outputs(source.module, _shape(info), options.bits), fsync=False) as writer:
        _write(source, options, judge, writer, progress)
        report = _report(source, options, judge)
        check_gate(report)
        writer.finish()
    return report


def check_shape(info: TensorInfo) -> None:
    """ProblemError("head-refused") for a matrix whose columns do not divide into groups."""
    if info.shape[1] % GROUP:
        message = f"{info.shape[1]} columns are no multiple of {GROUP}"
        raise ProblemError("head-refused", f"{info.name}: {message}", [Offender(where=info.name, message=message)])


def check_gate(report: HeadReport) -> None:
    """ProblemError("head-gate-failed") when rounding costs nothing, or GPTQ no less than rounding."""
    if report.rtn is None:
        return
    floor = FLOORS[report.bits]
    if not report.rtn.kl > floor:
        message = f"rounding costs {report.rtn.kl:.3g} of KL, not above {floor:g}: the captured rows say nothing"
        raise ProblemError("head-gate-failed", message, [Offender(where="rtn.kl", message=message)])
    if report.gptq is not None and not report.gptq.kl < report.rtn.kl:
        message = f"{report.method} costs {report.gptq.kl:.3g} of KL, rounding {report.rtn.kl:.3g}"
        raise ProblemError("head-gate-failed", message, [Offender(where="gptq.kl", message=message)])


def _shape(info: TensorInfo) -> tuple[int, int]:
    return info.shape[0], info.shape[1]


class _Judge:
    """What captured rows say: the factor that GPTQ walks along, and each head's distance from the original."""

    def __init__(self, rows: Rows, options: HeadOptions) -> None:
        calibration, held = rows.split()
        chosen = held[torch.linspace(0, len(held) - 1, min(HELD_ROWS, len(held))).long()]
        self.counts = (len(calibration), len(chosen))
        self._held = rows.hidden[chosen].float()
        self.factor = None
        # Also of a head that is only rounded: dead columns say that the capture is no good.
        moments = hessian(rows.pieces(calibration))
        if options.method != "rtn":
            self.factor = inverse_factor(moments, options.damp)
        self.rtn, self.gptq = _Distance(self._held), _Distance(self._held)

    def logits(self, weight: Tensor) -> Tensor:
        return self._held @ weight.T


class _Distance:
    def __init__(self, held: Tensor) -> None:
        self._divergence = Divergence(held)
        self._apart = self._whole = 0.0

    def add(self, logits: Tensor, others: Tensor) -> None:
        self._divergence.add(logits, others)
        self._apart += float((logits - others).double().pow_(2).sum())
        self._whole += float(logits.double().pow_(2).sum())

    def found(self) -> heads.Divergence:
        difference = self._divergence.difference()
        return heads.Divergence(
            kl=difference.kl, top1=difference.top1, weighted_error=self._apart / max(self._whole, 1e-300)
        )


def _write(
    source: HeadSource, options: HeadOptions, judge: _Judge | None, writer: WeightWriter, progress: Progress
) -> None:
    info, empty = source.tensor, True
    for first, last, weight in _chunks(source):
        rounded = round_to_nearest(weight, Grid(options.bits))
        chosen = rounded
        if judge is not None and judge.factor is not None:
            chosen = gptq(weight, judge.factor, Grid(options.bits, clip=options.method == "gptq_mse"))
        if judge is not None:
            logits = judge.logits(weight.float())
            judge.rtn.add(logits, judge.logits(rounded.dequantized()))
            if chosen is not rounded:
                judge.gptq.add(logits, judge.logits(chosen.dequantized()))
        put(writer, source.module, first, chosen, options.bits)
        empty = empty and not bool(chosen.codes.any())
        progress(last * info.nbytes // info.shape[0], info.nbytes)
    if empty:
        raise ProblemError("all-zero-weight", f"{source.said} is all zero", [Offender(where=info.name, message="zero")])
    writer.put(f"{source.module}.{SHAPE}", 0, stored_shape(info.shape))


def put(writer: WeightWriter, module: str, first: int, part: Quantized, bits: int) -> None:
    """Rows of a matrix from row `first` on."""
    words = pack(part.codes.numpy(), bits)
    writer.put(f"{module}.{PACKED}", first * words.shape[1] * words.itemsize, words)
    writer.put(f"{module}.{SCALE}", first * part.scales.shape[1] * 2, raw(part.scales))


def _chunks(source: HeadSource) -> Iterator[tuple[int, int, Tensor]]:
    info = source.tensor
    for first, last in steps(*_shape(info)):
        weight = read_rows(source.path, info, first, last)
        if not bool(weight.isfinite().all()):
            message = f"NaN or Inf in rows {first} to {last - 1}"
            raise ProblemError(
                "non-finite-weights", f"{source.said}: {message}", [Offender(where=info.name, message=message)]
            )
        yield first, last, weight


def _report(source: HeadSource, options: HeadOptions, judge: _Judge | None) -> HeadReport:
    rows, columns = _shape(source.tensor)
    report = HeadReport(bits=options.bits, method=options.method, source=source.said, rows=rows, columns=columns)
    if judge is None:
        return report
    calibration, held = judge.counts
    return report.model_copy(
        update={
            "calibration_rows": calibration,
            "held_out_rows": held,
            "rtn": judge.rtn.found(),
            "gptq": judge.gptq.found() if judge.factor is not None else None,
        }
    )
