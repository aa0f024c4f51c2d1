"""From a checkpoint folder to a variant folder in one process: what a job's stages do, without the service."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Plan, ScaleSearch
from draftmill.problems import ProblemError
from draftmill.reports import VerifyReport

Progress = Callable[[str, int, int], None]
"""Stage name, done, total: source bytes while quantizing, checks while verifying."""


class OutError(Exception):
    """There is no making a folder where the variant is to lie."""


@dataclass(frozen=True)
class Switches:
    verify: bool = True
    fsync: bool = True
    overwrite: bool = False
    device: str = "cpu"
    threads: int | None = None


@dataclass
class Milled:
    plan: Plan
    folder: Path | None
    """Where the variant lies; None when it failed its checks and was thrown away."""
    report: VerifyReport | None
    """None when verification was switched off."""
    serve_command: str
    warnings: tuple[str, ...]
    scale_search: ScaleSearch | None = None
    """What the scale search gained, where there was one."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by stage."""


def mill(
    source: Path, out: Path, format: Format, options: QuantizeOptions, *, switches: Switches, progress: Progress
) -> Milled:
    """Builds the variant beside `out` and renames it there once it is whole and verified. The source stays as it is.

    Raises every problem of the stages, `source-changed` when the source's files changed meanwhile, and OutError before
    any work when `out` cannot be made.
    """
    from draftmill_worker.assemble.assemble import assemble
    from draftmill_worker.checkpoint.checkpoint import open_checkpoint
    from draftmill_worker.checkpoint.identity import changed, fingerprint
    from draftmill_worker.quantize.existing import read_drafter
    from draftmill_worker.quantize.plan import make_plan
    from draftmill_worker.quantize.stream import quantize

    seconds: dict[str, float] = {}
    with _scratch(out) as scratch:
        if any(path.is_symlink() for path in source.rglob("*")):
            with _timed(seconds, "pull"):
                source = _without_links(source, scratch.parent / "sources")
        with _timed(seconds, "plan"):
            before = fingerprint(source)
            checkpoint = open_checkpoint(source)
            drafter = read_drafter(checkpoint, format, options)
            plan = make_plan(checkpoint, drafter, format, options)
        with _timed(seconds, "quantize"):
            done = quantize(
                source,
                plan,
                scratch,
                progress=lambda done, total: progress("quantize", done, total),
                fsync=switches.fsync,
                device=switches.device,
                threads=switches.threads,
            )
        with _timed(seconds, "assemble"):
            assembled = assemble(source, checkpoint, drafter, plan, scratch, repo=None, commit=None)
        warnings = (*plan.warnings, *assembled.warnings)
        milled = Milled(plan, out, None, assembled.serve_command, warnings, done.scale_search, seconds)
        if switches.verify:
            from draftmill_worker.verify import verify

            with _timed(seconds, "verify"):
                milled.report = verify(
                    source,
                    scratch,
                    plan,
                    source_identity=before,
                    progress=lambda done, total: progress("verify", done, total),
                )
        if offenders := changed(source, before):
            raise ProblemError("source-changed", "the source changed while it was quantized", offenders)
        if milled.report is not None and not milled.report.passed:
            milled.folder = None
        else:
            _publish(scratch, out, switches)
    return milled


def _without_links(source: Path, sources_dir: Path) -> Path:
    """A copy of a folder that holds links, such as a snapshot in a Hub cache, as a job pulls it.

    A link may lead anywhere: whoever types a folder's name answers for what is in it.
    """
    from draftmill_worker.pull import LocalSettings, pull_path

    return pull_path(source, [Path("/")], sources_dir, LocalSettings()).folder


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[stage] = round(time.perf_counter() - started, 3)


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """An empty folder on `out`'s file system, removed with all that is left in it. Raises OutError."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    except OSError as error:
        raise OutError(f"no folder can be made in {out.parent}: {error.strerror}") from error
    try:
        variant = folder / "variant"
        variant.mkdir(mode=0o755)
        yield variant
    finally:
        shutil.rmtree(folder)


def _publish(variant: Path, out: Path, switches: Switches) -> None:
    if switches.overwrite and out.exists():
        # Moved aside into the scratch folder, which is removed: `out` is missing for an instant, never half written.
        out.rename(variant.parent / "replaced")
    if switches.fsync:
        for folder in (*(path for path in variant.rglob("*")), variant):
            _sync(folder)
    variant.rename(out)
    if switches.fsync:
        _sync(out.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
