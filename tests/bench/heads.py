"""Quantizing a large head by GPTQ, beside a plain port: time and peak memory. `python -m tests.bench.heads [--full]`

A head of 151,936 x 4,096, int4, 8,192 captured rows. Ours is `quantize_head` whole: moments, GPTQ, rounding beside it,
KL on held-out rows, packing, the file. The port is GPTQ as its authors publish it, column by column over the whole
matrix in fp32, without rounding, KL, packing or a file; it runs on an eighth of the rows unless `--full`, since its
time and its memory are proportional to them.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from draftmill.plans import OutputTensor
from draftmill_worker.heads import rows
from draftmill_worker.quantize.layout import layout
from tests.bench.measure import Measured, run

VOCAB, COLUMNS, ROWS = 151_936, 4096, 8192
PART = 8
LIMIT = 4e9
"""Bytes of memory that ours must stay under."""


def _head(path: Path) -> None:
    """Random bf16, a block of it over and over: GPTQ takes the same time whatever the numbers are."""
    found = layout([OutputTensor(name="lm_head.weight", dtype="BF16", shape=(VOCAB, COLUMNS))])
    block = _bf16(np.random.default_rng(0).standard_normal((2048, COLUMNS), np.float32) * 0.02).tobytes()
    left = VOCAB * COLUMNS * 2
    with path.open("wb") as file:
        file.write(found.header)
        while left > 0:
            left -= file.write(block[:left])


def _capture(path: Path) -> None:
    generator = np.random.default_rng(1)
    inner = generator.standard_normal((ROWS, 256), np.float32) @ generator.standard_normal((256, COLUMNS), np.float32)
    values = inner / 16 + 0.3 * generator.standard_normal((ROWS, COLUMNS), np.float32)
    info = rows.allocate(path, [[1] * 256 for _ in range(ROWS // 256)], COLUMNS)
    with path.open("r+b") as file:
        file.seek(info.start)
        file.write(_bf16(values).tobytes())


def _bf16(
    values: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]",
) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint16]]":
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def _line(name: str, found: Measured, count: int) -> str:
    return f"{name:12} {count:8} {found.wall:8.0f} {found.cpu:8.0f} {found.anonymous / 1e9:8.2f}"


def _extrapolated(half: Measured, whole: Measured, count: int) -> Measured:
    """Of VOCAB rows, on the line through runs on half of `count` rows and on all of them."""

    def at(low: float, high: float) -> float:
        return high + (high - low) / (count - count // 2) * (VOCAB - count)

    return Measured(
        at(half.wall, whole.wall), at(half.cpu, whole.cpu), int(at(half.anonymous, whole.anonymous)), whole.output
    )


def main(arguments: list[str]) -> int:
    """1 when ours took LIMIT or more, or more time than the port."""
    parser = argparse.ArgumentParser(prog="tests.bench.heads")
    parser.add_argument("--full", action="store_true", help="the port on all rows: about 9 GB of memory")
    count = VOCAB if parser.parse_args(arguments).full else VOCAB // PART
    # Threads that spin while they wait would be counted as work.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with tempfile.TemporaryDirectory() as folder:
        head, capture = Path(folder, "model.safetensors"), Path(folder, rows.FILE)
        _head(head)
        _capture(capture)
        arm = [sys.executable, "-m", "tests.bench.heads_arm"]
        ours = run([*arm, "ours", str(head), str(capture)])
        half, port = (run([*arm, "port", str(head), str(capture), str(part)]) for part in (count // 2, count))
    print(f"{'arm':12} {'rows':>8} {'wall s':>8} {'CPU s':>8} {'GB':>8}")
    print(_line("draftmill", ours, VOCAB))
    print(_line("plain port", half, count // 2))
    print(_line("plain port", port, count))
    whole = _extrapolated(half, port, count)
    if count < VOCAB:
        print(_line("extrapolated", whole, VOCAB))
    return int(ours.anonymous >= LIMIT or ours.wall >= whole.wall)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
