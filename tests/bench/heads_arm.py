"""One arm of `tests.bench.heads`: `ours HEAD CAPTURE` or `port HEAD CAPTURE ROWS`, both from the same files."""

import sys
from pathlib import Path

import torch
from torch import Tensor

from draftmill.heads import HeadOptions
from draftmill_worker.checkpoint.headers import read_header
from draftmill_worker.heads.quantize import quantize_head
from draftmill_worker.heads.rows import open_rows
from draftmill_worker.heads.source import HeadSource
from draftmill_worker.heads.tensors import read_rows

NAME = "lm_head.weight"
GROUP = 128


def ours(head: Path, capture: Path) -> None:
    source = HeadSource(head, read_header(head)[NAME], "lm_head", tied=False)
    quantize_head(source, HeadOptions(), open_rows(capture), head.with_name("head.safetensors"), lambda *_: None)


def port(head: Path, capture: Path, count: int) -> Tensor:
    """Of https://github.com/IST-DASLab/gptq (gptq.py, `fasterquant`): blocks of 128, groups of 128, damp 0.01."""
    weight = read_rows(head, read_header(head)[NAME], 0, count).float()
    columns = weight.shape[1]
    hidden = open_rows(capture).hidden.float()
    moments = 2 / len(hidden) * hidden.T @ hidden
    moments.diagonal().add_(0.01 * moments.diagonal().mean())
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(moments)), upper=True)
    losses, quantized = torch.zeros_like(weight), torch.zeros_like(weight)
    for first in range(0, columns, GROUP):
        block = weight[:, first : first + GROUP].clone()
        errors, inner = torch.zeros_like(block), factor[first : first + GROUP, first : first + GROUP]
        scale = block.abs().amax(1) / 7.5
        for column in range(GROUP):
            values, pivot = block[:, column], inner[column, column]
            rounded = scale * torch.clamp(torch.round(values / scale), -8, 7)
            quantized[:, first + column] = rounded
            losses[:, first + column] = (values - rounded) ** 2 / pivot**2 / 2
            error = (values - rounded) / pivot
            block[:, column:] -= error.unsqueeze(1).matmul(inner[column, column:].unsqueeze(0))
            errors[:, column] = error
        weight[:, first + GROUP :] -= errors.matmul(factor[first : first + GROUP, first + GROUP :])
    return quantized


if __name__ == "__main__":
    which, head, capture, *rest = sys.argv[1:]
    if which == "ours":
        ours(Path(head), Path(capture))
    else:
        port(Path(head), Path(capture), int(rest[0]))
