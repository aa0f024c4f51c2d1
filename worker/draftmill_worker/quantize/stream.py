"""The engine: a checkpoint's weight files and a plan in, the variant's weight files out."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from draftmill.plans import Fate, Plan, ScaleSearch, TensorPlan
from draftmill.problems import Offender, ProblemError
from draftmill_worker.quantize import moves, whole
from draftmill_worker.quantize.files import Files
from draftmill_worker.quantize.kernels.rows import SquaredErrors, row_ops, work_dtype
from draftmill_worker.quantize.packing import Findings, Packer, fused_sets
from draftmill_worker.quantize.pool import WorkPool
from draftmill_worker.quantize.reader import WeightReader
from draftmill_worker.quantize.whole import WholeFile
from draftmill_worker.quantize.writer import WeightWriter

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TensorStats:
    """What was found while quantizing one weight."""

    amax: float | None
    """What the tensor's scale was made from, its fused set's where that is shared; None with a scale per row."""
    zeros: int
    """Rows (fp8_pc_pt) or blocks of 16 (nvfp4) that are all zero; 0 with one scale per tensor."""


@dataclass(frozen=True, slots=True)
class QuantizeResult:
    files: dict[str, int]
    """Tensors written, by weight file."""
    tensors: dict[str, TensorStats]
    """By quantized weight."""
    scale_search: ScaleSearch | None
    """What it gained; None where the plan asks for none."""
    copied: dict[str, str]
    """Why each file that goes into the variant whole is a copy; the others are links."""


def quantize(
    source: Path,
    plan: Plan,
    out: Path,
    *,
    progress: Progress | None = None,
    fsync: bool = True,
    device: str = "cpu",
    threads: int | None = None,
    link: bool = False,
) -> QuantizeResult:
    """Writes the plan's weight files into the folder `out`, one per source file, under the same names.

    With `link` the plan's untouched files become hard links: only for a source that nobody writes to. Where the
    system refuses a link they are copied.

    `progress(done, total)` counts source bytes and is called in this thread. `device` is `cpu` or a CUDA device;
    `threads` is the number of CPUs by default. After an error `out` holds none of the files.

    Problems: `non-finite-weights` and `all-zero-weight`, with all offenders; `source-changed` when the files do not
    hold what the plan says; `disk-budget` when the output does not fit.
    """
    by_file: dict[str, list[TensorPlan]] = {}
    for tensor in plan.tensors:
        by_file.setdefault(tensor.file, []).append(tensor)
    with ExitStack() as stack:
        readers = {file: stack.enter_context(WeightReader(source / file, file)) for file in by_file}
        _check_source(source, plan, by_file, readers)
        wholes = {
            file.file: stack.enter_context(WholeFile(source, file.file, out, link=link, fsync=fsync))
            for file in plan.untouched
        }
        writers = {
            file: stack.enter_context(
                WeightWriter(out / file, (output for tensor in tensors for output in tensor.outputs), fsync=fsync)
            )
            for file, tensors in by_file.items()
        }
        findings = _run(
            plan,
            Files(readers, writers),
            tuple(wholes.values()),
            progress=progress,
            device=device,
            threads=threads,
        )
        for writer in writers.values():
            writer.finish()
        for passed in wholes.values():
            passed.finish()
    if fsync:
        _sync_folder(out)
    return QuantizeResult(
        files={file: sum(len(tensor.outputs) for tensor in tensors) for file, tensors in by_file.items()},
        tensors={name: TensorStats(amax, findings.zeros[name]) for name, amax in findings.amax.items()},
        scale_search=_gained(findings.errors.values()) if plan.nvfp4_scale_search else None,
        copied={name: whole.copied for name, whole in wholes.items() if whole.copied},
    )


def _gained(errors: Iterable[SquaredErrors]) -> ScaleSearch:
    """Means over weights, each of which counts alike; those that are all zero have no error to compare."""
    parts = [part for part in errors if part.weight > 0]
    return ScaleSearch(
        relative_mse=fmean(part.found / part.weight for part in parts) if parts else 0.0,
        plain_relative_mse=fmean(part.plain / part.weight for part in parts) if parts else 0.0,
    )


def _check_source(
    source: Path, plan: Plan, by_file: dict[str, list[TensorPlan]], readers: dict[str, WeightReader]
) -> None:
    offenders = [offender for file in plan.untouched for offender in whole.check(source, file)]
    for file, tensors in by_file.items():
        planned = {tensor.name: (tensor.dtype, tensor.shape) for tensor in tensors}
        found = {info.name: (info.dtype, info.shape) for info in readers[file].tensors.values()}
        for name in sorted(planned.keys() | found.keys()):
            if planned.get(name) != found.get(name):
                message = f"planned {planned.get(name)}, found {found.get(name)}"
                offenders.append(Offender(where=f"{file}: {name}", message=message))
    if offenders:
        raise ProblemError("source-changed", "The weight files are not those the plan was made from", offenders)


def _run(
    plan: Plan,
    files: Files,
    wholes: Sequence[WholeFile],
    *,
    progress: Progress | None,
    device: str,
    threads: int | None,
) -> Findings:
    total = sum(files.info(tensor).nbytes for tensor in plan.tensors) + sum(file.nbytes for file in wholes)
    findings = Findings()
    with WorkPool(threads, total, progress) as pool:
        for file in wholes:
            file.fill(pool)
        for tensor in plan.tensors:
            if tensor.fate is Fate.KEPT:
                moves.copy(files, pool, tensor)
        # Loads the compiled loops, or torch; the copies go on meanwhile.
        ops = row_ops(device)
        for tensor in plan.tensors:
            if tensor.fate is Fate.CAST:
                moves.cast(files, pool, tensor, findings.nonfinite)
        Packer(plan, files, pool, ops, findings).pack(fused_sets(plan))
        pool.finish()
    _raise_offenders(plan, files, findings)
    return findings


def _raise_offenders(plan: Plan, files: Files, findings: Findings) -> None:
    offenders = [_offender(plan, files, tensor, findings) for tensor in plan.tensors]
    found: Sequence[Offender] = [offender for offender in offenders if offender is not None]
    if findings.nonfinite:
        raise ProblemError("non-finite-weights", f"{len(found)} weights cannot be quantized or cast", list(found))
    if findings.scaleless:
        detail = f"{len(found)} weights have no usable scale; exclude them to keep them as they are"
        raise ProblemError("all-zero-weight", detail, list(found))


def _offender(plan: Plan, files: Files, tensor: TensorPlan, findings: Findings) -> Offender | None:
    if tensor.name in findings.nonfinite:
        from draftmill_worker.quantize.nonfinite import nonfinite_offender

        quantized = tensor.fate is Fate.QUANTIZED
        target = work_dtype(tensor.dtype, plan.dtype) if quantized else tensor.outputs[0].dtype
        return nonfinite_offender(files.readers[tensor.file], files.info(tensor), target)
    if tensor.name in findings.scaleless:
        return Offender(where=tensor.name, message=f"is all zero, or too small for a scale of {plan.format}")
    return None


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
