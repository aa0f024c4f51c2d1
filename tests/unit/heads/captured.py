"""Captures as an exact target gives them, without an engine: its hidden states are three lines of torch."""

from pathlib import Path

import torch
from torch import Tensor

from draftmill_worker.heads import rows
from tests.fixtures.heads import target

SHAPE = target.Shape(vocab=1024, hidden=256, intermediate=128, heads=2, kv_heads=1, head_dim=64)


def write(path: Path, texts: list[list[int]], hidden: Tensor) -> Path:
    info = rows.allocate(path, texts, hidden.shape[1])
    with path.open("r+b") as file:
        file.seek(info.start)
        file.write(hidden.bfloat16().view(torch.int16).numpy().tobytes())
    return path


def exact_rows(folder: Path, path: Path, *, texts: int = 20, length: int = 60) -> Path:
    """Random texts under the exact target in `folder`, in the file `path`."""
    ids = torch.randint(0, SHAPE.vocab, (texts, length), generator=torch.Generator().manual_seed(3))
    return write(path, ids.tolist(), target.hidden_states(folder, ids.flatten()))
