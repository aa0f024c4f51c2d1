"""Captured hidden rows on disk: one safetensors file that is mapped, and what must hold before anything uses it.

hidden  BF16 [rows, columns]   the final norm's output, one row per token
tokens  I64 [rows]             the token that each row belongs to
starts  I64 [texts + 1]        first row of each text, then the number of rows
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftmill.plans import OutputTensor
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.headers import TensorInfo, read_header
from draftmill_worker.quantize.layout import layout

FILE = "capture.safetensors"
HIDDEN, TOKENS, STARTS = "hidden", "tokens", "starts"
PIECE = 4096
"""Rows looked at together."""
HELD_OUT = 10
"""One text in this many is held out; the last tenth of the rows where there are fewer texts."""
LISTED = 100


def allocate(path: Path, texts: list[list[int]], columns: int) -> TensorInfo:
    """A new file with every token in it and hidden rows of zeros; where in it they go."""
    rows = sum(map(len, texts))
    tensors = (
        OutputTensor(name=HIDDEN, dtype="BF16", shape=(rows, columns)),
        OutputTensor(name=TOKENS, dtype="I64", shape=(rows,)),
        OutputTensor(name=STARTS, dtype="I64", shape=(len(texts) + 1,)),
    )
    found = layout(tensors)
    with path.open("xb") as file:
        file.write(found.header)
        file.truncate(found.size)
        file.seek(found.starts[TOKENS])
        file.write(np.array([token for text in texts for token in text], np.int64).tobytes())
        file.seek(found.starts[STARTS])
        file.write(np.cumsum([0, *map(len, texts)], dtype=np.int64).tobytes())
    return read_header(path)[HIDDEN]


@dataclass(frozen=True)
class Rows:
    hidden: Tensor
    """bf16 [rows, columns], mapped."""
    tokens: Tensor
    """int64 [rows]."""
    starts: Tensor
    """int64 [texts + 1]."""

    @property
    def texts(self) -> int:
        return len(self.starts) - 1

    def pieces(self, places: Tensor) -> Iterator[Tensor]:
        """The rows at `places`, PIECE at a time."""
        for part in torch.split(places, PIECE):
            yield self.hidden[part]

    def split(self) -> tuple[Tensor, Tensor]:
        """Numbers of the rows to calibrate with, and of those that are held out."""
        rows = torch.arange(len(self.hidden))
        if self.texts >= HELD_OUT:
            text = torch.searchsorted(self.starts, rows, right=True) - 1
            held = text % HELD_OUT == HELD_OUT - 1
        else:
            held = rows >= len(rows) - max(1, len(rows) // HELD_OUT)
        return rows[~held], rows[held]


def open_rows(path: Path) -> Rows:
    """The capture in the file. Raises `malformed-safetensors` for a file cut short, and what `check_rows` does."""
    found = read_header(path)
    if {name: (info.dtype, len(info.shape)) for name, info in found.items()} != {
        HIDDEN: ("BF16", 2),
        TOKENS: ("I64", 1),
        STARTS: ("I64", 1),
    }:
        raise ProblemError("capture-invalid", f"{path.name} does not hold hidden, tokens and starts")
    rows = Rows(
        torch.from_numpy(_mapped(path, found[HIDDEN], np.int16)).view(torch.bfloat16),
        torch.from_numpy(_mapped(path, found[TOKENS], np.int64)),
        torch.from_numpy(_mapped(path, found[STARTS], np.int64)),
    )
    check_rows(rows)
    return rows


def _mapped(path: Path, info: TensorInfo, dtype: type[np.int16 | np.int64]) -> NDArray[Any]:
    if info.nbytes == 0:
        return np.zeros(info.shape, dtype)
    # Copied on write, though nothing writes: torch wants memory that it could write to.
    return np.memmap(path, dtype, "c", info.start, info.shape)


def check_rows(rows: Rows) -> None:
    """Fails closed: as many rows as tokens, all finite, none zero, at least two that differ.

    Of zeros a head's KL says nothing: half of the rows can be zero without a change in it.
    ProblemError("capture-short") or ("capture-invalid") with the texts that are wrong.
    """
    count, starts = len(rows.hidden), rows.starts
    if not (count == len(rows.tokens) == int(starts[-1])) or count == 0 or bool((starts.diff() <= 0).any()):
        message = f"{count} rows for {len(rows.tokens)} tokens, of which the texts claim {int(starts[-1])}"
        raise ProblemError("capture-short", message)
    zero, broken, distinct = _flaws(rows)
    offenders = [*_blame(rows, zero, "all-zero rows"), *_blame(rows, broken, "rows with NaN or Inf")]
    if offenders:
        detail = f"{int(zero.sum())} of {count} rows are zero, {int(broken.sum())} not finite"
        raise ProblemError("capture-invalid", detail, offenders)
    if not distinct:
        raise ProblemError("capture-invalid", f"all {count} rows are the same")


def _flaws(rows: Rows) -> tuple[Tensor, Tensor, bool]:
    zero, broken, distinct = [], [], False
    first = rows.hidden[:1]
    for piece in torch.split(rows.hidden, PIECE):
        zero.append((piece == 0).all(1))
        broken.append(~piece.isfinite().all(1))
        distinct = distinct or not bool((piece == first).all())
    return torch.cat(zero), torch.cat(broken), distinct


def _blame(rows: Rows, flawed: Tensor, what: str) -> list[Offender]:
    found = torch.bincount(torch.searchsorted(rows.starts, flawed.nonzero().flatten(), right=True) - 1)
    return [
        Offender(where=f"text {text}", message=what, value=int(found[text]))
        for text in found.nonzero().flatten().tolist()[:LISTED]
    ]


def described(rows: Rows) -> dict[str, Any]:
    calibration, held = rows.split()
    return {
        "rows": len(rows.hidden),
        "columns": rows.hidden.shape[1],
        "texts": rows.texts,
        "calibration_rows": len(calibration),
        "held_out_rows": len(held),
    }
