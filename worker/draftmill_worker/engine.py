"""`draftmill quantize`: the engine alone, for a checkpoint folder at hand."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from draftmill.cli import text
from draftmill.cli.exits import ExitCode
from draftmill.cli.options import Dtype, Exclude, FormatName, Json, LmHead, Merge, Scales, ScaleSearch
from draftmill.cli.output import Output, plain, size
from draftmill.cli.request import Request, UsageProblemError, job_spec
from draftmill.plans import Fate
from draftmill.problems import Offender, ProblemError
from draftmill_worker.mill import Milled, OutError, Progress, Switches, mill


def quantize(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC",
            help="A drafter's checkpoint folder, or a training output folder for its newest export. It is only read.",
        ),
    ],
    *,
    format: FormatName,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="The folder to make.")],
    exclude: Exclude = [],  # noqa: B006 -- typer copies it
    lm_head: LmHead = False,
    scales: Scales = "fused",
    dtype: Dtype = "bfloat16",
    merge: Merge = False,
    nvfp4_scale_search: ScaleSearch = False,
    verify: Annotated[bool, typer.Option(help="Prove the variant before it gets its name.")] = True,
    fsync: Annotated[bool, typer.Option(help="Wait until the disk has every byte.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT when it is a variant.")] = False,
    device: Annotated[str, typer.Option(metavar="cpu|cuda[:N]", help="Where the weights are packed.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, max=64, help="Threads.  [default: one per CPU]")] = None,
    json: Json = False,
) -> None:
    """Quantize a checkpoint folder into a verified variant folder, without a service.

    OUT appears whole and verified, or not at all. Exit codes: 3 the input was refused, 4 the variant failed its checks.

    \b
    Examples:
      draftmill quantize ./drafter --format fp8 -o drafter-fp8
      draftmill quantize ./drafter -f w4a16_nvfp4 --exclude '*fc*' -o drafter-w4 --json
    """
    output = Output(json)
    typed = str(source.expanduser().absolute())
    request = Request(
        typed, format, None, tuple(exclude), lm_head, scales, dtype, merge=merge, scale_search=nvfp4_scale_search
    )
    spec = job_spec(request)
    source, out = source.expanduser().resolve(), out.expanduser().absolute()
    _check(source, out, overwrite, device)
    out = out.resolve()
    source = _checkpoint(source, output)
    switches = Switches(verify=verify, fsync=fsync, overwrite=overwrite, device=device, threads=threads)
    try:
        with _progress(output) as progress:
            milled = mill(source, out, spec.fixed_format, spec.quantize, switches=switches, progress=progress)
    except OutError as error:
        raise _usage([Offender(where="--out", message=str(error))]) from error
    output.result(_document(source, milled), *_lines(milled))
    if milled.folder is None:
        output.note("The variant failed its checks and was removed.")
        raise typer.Exit(ExitCode.FAILED)


def _checkpoint(source: Path, output: Output) -> Path:
    """The newest export of a training output folder, as a job takes it; the folder itself otherwise."""
    from draftmill_worker.pull.roots import newest_export

    export = newest_export(source)
    if export is None:
        return source
    output.note(f"source: {export}, the newest export")
    return export.resolve()


def _check(source: Path, out: Path, overwrite: bool, device: str) -> None:
    if not source.is_dir():
        raise ProblemError("path-not-found", f"{source} is not a folder", [Offender(where="SRC", message="no folder")])
    offenders = []
    try:
        fault = _out_fault(source, out, overwrite)
    except OSError as error:  # a name too long, a folder that may not be searched
        fault = f"{out}: {error.strerror}"
    if fault is not None:
        offenders.append(Offender(where="--out", message=fault))
    if (fault := _device_fault(device)) is not None:
        offenders.append(Offender(where="--device", message=fault, value=device))
    if offenders:
        raise _usage(offenders)


def _usage(offenders: list[Offender]) -> UsageProblemError:
    return UsageProblemError("the command line does not make a variant", offenders)


def _out_fault(source: Path, out: Path, overwrite: bool) -> str | None:
    if out.is_symlink():
        return f"{out} is a link; name the folder itself"
    out = out.resolve()
    if out == source or source in out.parents or out in source.parents:
        return "OUT and SRC must not lie in one another"
    return _existing_fault(out, overwrite) if out.exists() else None


def _existing_fault(out: Path, overwrite: bool) -> str | None:
    if not out.is_dir():
        return f"{out} exists, and is no folder"
    if not overwrite:
        return f"{out} exists; --overwrite replaces it"
    names = {path.name for path in out.iterdir()}
    if names and not names >= {"config.json", "plan.json"}:
        return f"{out} holds no variant and is not empty; --overwrite replaces nothing else"
    return None


def _device_fault(device: str) -> str | None:
    """`torch` is the CUDA path on CPU tensors: slow, for comparison."""
    if device in ("cpu", "torch"):
        return None
    if not re.fullmatch(r"cuda(:\d+)?", device):
        return "is cpu, cuda or cuda:N"
    import torch

    index = int(device.partition(":")[2] or 0)
    return None if index < torch.cuda.device_count() else f"torch sees {torch.cuda.device_count()} CUDA devices"


def _document(source: Path, milled: Milled) -> dict[str, object]:
    fates = [tensor.fate for tensor in milled.plan.tensors]
    return {
        "source": str(source),
        "folder": None if milled.folder is None else str(milled.folder),
        "family": milled.plan.family,
        "format": milled.plan.format,
        "source_bytes": milled.plan.source_bytes,
        "variant_bytes": milled.plan.variant_bytes,
        "tensors": {fate: fates.count(fate) for fate in Fate}
        | {Fate.KEPT: fates.count(Fate.KEPT) + sum(file.tensors for file in milled.plan.untouched)},
        "seconds": milled.seconds,
        "serve_command": milled.serve_command,
        "warnings": milled.warnings,
        "scale_search": milled.scale_search,
        "verify": milled.report,
    }


def _lines(milled: Milled) -> list[str]:
    plan = milled.plan
    lines = [*text.plan_lines(plan)]
    lines += [f"warning: {plain(warning)}" for warning in milled.warnings if warning not in plan.warnings]
    if milled.scale_search is not None:
        lines.append(text.scale_search_line(milled.scale_search))
    if milled.report is not None:
        lines += text.verify_lines(milled.report)
    lines.append(", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in milled.seconds.items()))
    if milled.folder is not None:
        lines += [f"variant    {milled.folder}", f"serve      {milled.serve_command}"]
    return lines


@contextmanager
def _progress(output: Output) -> Iterator[Progress]:
    """A bar on a terminal, a line per stage elsewhere."""
    if sys.stderr.isatty() and not output.as_json:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
        with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
            tasks = {}

            def draw(stage: str, done: int, total: int) -> None:
                if stage not in tasks:
                    tasks[stage] = bar.add_task(stage, total=total, amount="")
                amount = f"{size(done)} of {size(total)}" if stage == "quantize" else f"{done} of {total} checks"
                bar.update(tasks[stage], completed=done, amount=amount)

            yield draw
        return

    def line(stage: str, done: int, total: int) -> None:
        if done == total:
            output.note(f"{stage}: {size(total)} done" if stage == "quantize" else f"{stage}: {total} checks done")

    yield line
