"""The quantizer beside ModelOpt's flat-linear reference and the machine's floor. `python -m tests.bench.engine --help`

Arms are interleaved, each a fresh process over the same DSpark-shaped checkpoint with a warm page cache, and each is
measured whole: imports are in the time. (The warm row is the stage alone, in a fork of a process that has everything
loaded, as the service runs it.) All arms sync to disk or none does; hashing is a line of its own. ModelOpt's file and
ours must be equal, byte for byte. With --peer, fp8 also runs beside llm-compressor's model_free_ptq in FP8_DYNAMIC,
with the same modules left alone. With several rounds the best of each arm counts: other work can only slow one down.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Fate, Plan
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.checkpoint.hashing import sha256_file
from draftmill_worker.quantize.plan import make_plan
from tests.bench import measure
from tests.bench.measure import Measured
from tests.fixtures.large import dspark_shaped

WEIGHTS = "model.safetensors"
MEGA = 1e6
FULL_GIGABYTES = 3.42
# Longer than the delay after which free pages are handed back.
REST_SECONDS = 3
# llm-compressor's scheme next to each format.
PEER_SCHEMES = {Format.FP8: "FP8_DYNAMIC"}


@dataclass(frozen=True)
class Row:
    format: str
    arm: str
    wall: float
    cpu: float
    anonymous_mb: float
    gb_per_s: float
    """Source bytes by wall time."""


def main(arguments: list[str]) -> None:
    options = _options(arguments)
    results = []
    for gigabytes in options.gb or [FULL_GIGABYTES]:
        folder = Path(tempfile.mkdtemp(prefix="draftmill-bench-", dir=options.dir))
        try:
            results.append(bench(folder, gigabytes, options))
        finally:
            shutil.rmtree(folder)
    print(json.dumps(results, indent=2) if options.json else "\n".join(_report(results)))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.bench.engine", description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, action="append", help="size of the checkpoint, 0.5 to 4; may be repeated")
    parser.add_argument("--format", action="append", choices=list(Format), help="default: fp8 and w4a16_nvfp4")
    parser.add_argument("--rounds", type=int, default=1, help="of which the best counts")
    parser.add_argument("--fsync", action="store_true", help="in both arms and the floor")
    parser.add_argument("--alone", action="store_true", help="without the reference, to see growth over --gb")
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="of an environment with llm-compressor")
    parser.add_argument("--dir", type=Path, help="where three times --gb fit")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def bench(folder: Path, gigabytes: float, options: argparse.Namespace) -> dict[str, object]:
    source = dspark_shaped(folder / "source", gigabytes)
    formats = [Format(name) for name in options.format or (Format.FP8, Format.W4A16_NVFP4)]
    plans = {format: _plan(source, format) for format in formats}
    warm = _milled(source, folder / "warm", formats[0], fsync=False)
    shutil.rmtree(folder / "warm")
    hashing = _hash_seconds(source / WEIGHTS)
    rows = [row for format, plan in plans.items() for row in _rows(folder, source, plan, format, options)]
    return {
        "source_bytes": (source / WEIGHTS).stat().st_size,
        "variant_bytes": {format: plan.variant_bytes for format, plan in plans.items()},
        "fsync": options.fsync,
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "first_run_seconds": warm.wall,
        "hash_source_seconds": hashing,
        "rows": [asdict(row) for row in rows],
    }


def _plan(source: Path, format: Format) -> Plan:
    checkpoint = open_checkpoint(source)
    return make_plan(checkpoint, detect(checkpoint), format, QuantizeOptions(scales="reference"))


def _hash_seconds(file: Path) -> float:
    started = time.perf_counter()
    sha256_file(file)
    return time.perf_counter() - started


def _rows(folder: Path, source: Path, plan: Plan, format: Format, options: argparse.Namespace) -> list[Row]:
    arms: dict[str, list[Measured]] = {}

    def measured(arm: str, run: Callable[[], Measured]) -> None:
        _settle(folder, plan)
        arms.setdefault(arm, []).append(run())

    for _ in range(options.rounds):
        measured("floor", lambda: _floor(source, folder / "floor", plan, fsync=options.fsync))
        measured("draftmill", lambda: _milled(source, folder / "ours", format, fsync=options.fsync))
        ours = _taken(folder / "ours")
        if not options.fsync:
            measured("draftmill, warm", lambda: _warm(source, folder / "warm", format))
        if not options.alone:
            measured("modelopt", lambda: _reference(folder, source, plan, format, fsync=options.fsync))
            if _taken(folder / "theirs") != ours:
                sys.exit(f"the files of draftmill and modelopt differ in {format}")
        if options.peer and format in PEER_SCHEMES:
            measured("model_free_ptq", lambda: _peer(folder, source, plan, format, options))
            shutil.rmtree(folder / "peer")
    size = plan.source_bytes
    return [
        Row(format, arm, best.wall, min(m.cpu for m in runs), best.anonymous / MEGA, size / best.wall / 1e9)
        for arm, runs in arms.items()
        for best in [min(runs, key=lambda run: run.wall)]
    ]


def _settle(folder: Path, plan: Plan) -> None:
    """Writes a file of the variant's size, lets the machine come to rest, and frees its pages for the arm to reuse.

    A virtual machine hands pages that were free for 2 s back to its host (Linux free page reporting), and getting
    1.8 GB of them again takes up to 4 s here, where reusing pages takes 0.2 s: whichever arm came first paid for it.
    """
    file, piece = folder / "settle", bytes(1 << 22)
    with file.open("wb", buffering=0) as stream:
        for _ in range(0, plan.variant_bytes, len(piece)):
            stream.write(piece)
    time.sleep(REST_SECONDS)
    file.unlink()


def _milled(source: Path, out: Path, format: Format, *, fsync: bool) -> Measured:
    command = [str(Path(sys.executable).with_name("draftmill")), "quantize", str(source), "-f", format, "-o", str(out)]
    switches = ["--scales", "reference", "--no-verify", "--json", "--fsync" if fsync else "--no-fsync"]
    return measure.run([*command, *switches])


def _warm(source: Path, out: Path, format: Format) -> Measured:
    """The stage alone, in a fork of a process that has loaded everything: what a job of a running service pays."""
    measured = measure.run([sys.executable, "-m", "tests.bench.warm_arm", str(source), str(out), format])
    shutil.rmtree(out)
    return replace(measured, **json.loads(measured.output))


def _reference(folder: Path, source: Path, plan: Plan, format: Format, *, fsync: bool) -> Measured:
    names = folder / "weights.json"
    names.write_text(json.dumps([tensor.name for tensor in plan.tensors if tensor.fate is Fate.QUANTIZED]))
    arm = [sys.executable, "-m", "tests.bench.modelopt_arm", str(source), str(folder / "theirs"), format, str(names)]
    return measure.run(arm + (["--fsync"] if fsync else []))


def _peer(folder: Path, source: Path, plan: Plan, format: Format, options: argparse.Namespace) -> Measured:
    ignore = folder / "ignore.json"
    kept = [tensor for tensor in plan.tensors if tensor.fate is not Fate.QUANTIZED and len(tensor.shape) == 2]
    ignore.write_text(json.dumps([tensor.name.removesuffix(".weight") for tensor in kept]))
    arm = [str(Path(__file__).with_name("model_free_arm.py")), str(source), str(folder / "peer"), PEER_SCHEMES[format]]
    # The path as given: a link to the interpreter is what makes it the environment's.
    return measure.run([str(options.peer.absolute()), *arm, str(ignore), *(["--fsync"] if options.fsync else [])])


def _floor(source: Path, out: Path, plan: Plan, *, fsync: bool) -> Measured:
    threads = str(len(os.sched_getaffinity(0)))
    arm = [sys.executable, "-m", "tests.bench.floor", str(source / WEIGHTS), str(out), str(plan.variant_bytes), threads]
    measured = measure.run(arm + (["--fsync"] if fsync else []))
    out.unlink()
    return measured


def _taken(folder: Path) -> str:
    """SHA-256 of the weights in a folder, which is removed."""
    digest = sha256_file(folder / WEIGHTS)
    shutil.rmtree(folder)
    return digest


def _report(results: list[dict[str, object]]) -> list[str]:
    first = results[0]
    durable = "until the disk has every byte" if first["fsync"] else "without fsync, in any arm"
    hashing = ", ".join(
        f"{result['source_bytes'] / 1e9:.2f} GB in {result['hash_source_seconds']:.2f} s" for result in results
    )
    lines = [
        f"{first['cpus']} CPUs, load {first['load']:.1f}, {durable}",
        f"hashing the source (SHA-256), not in the rows: {hashing}",
        "",
        "| source GB | format | arm | wall s | CPU s | peak anonymous MB | GB/s | times draftmill |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        lines += _lines(result["source_bytes"] / 1e9, [Row(**row) for row in result["rows"]])
    if any(row["arm"] == "modelopt" for row in first["rows"]):
        lines += ["", "draftmill's file and modelopt's are equal, byte for byte."]
    return lines


def _lines(gigabytes: float, rows: list[Row]) -> list[str]:
    walls = {row.format: row.wall for row in rows if row.arm == "draftmill"}
    return [
        f"| {gigabytes:.2f} | {row.format} | {row.arm} | {row.wall:.2f} | {row.cpu:.2f} | {row.anonymous_mb:.0f} "
        f"| {row.gb_per_s:.2f} | {row.wall / walls[row.format]:.2f} |"
        for row in rows
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
