"""The reference: ModelOpt on flat linears. `python -m tests.bench.modelopt_arm SOURCE OUT FORMAT WEIGHTS [--fsync]`

What a plain script does: read the state dict, cast it to bfloat16, hang each weight to quantize on an nn.Linear,
mtq.quantize with the format's preset (weights alone are calibrated), export with ModelOpt's own functions, save_file.
WEIGHTS is a JSON list of the tensors to quantize, so that both arms do the same work.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from draftmill.formats import Format

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.unit.quantize.modelopt_reference import quantized_linears, stored_tensors


def main(source: Path, out: Path, format: Format, names: list[str], *, fsync: bool) -> None:
    tensors = load_file(source / "model.safetensors")
    tensors = {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in tensors.items()}
    linears = quantized_linears([tensors.pop(name) for name in names], format)
    for name, linear in zip(names, linears, strict=True):
        for suffix, tensor in stored_tensors(linear, format).items():
            tensors[name.removesuffix("weight") + suffix] = tensor
        linear.weight = nn.Parameter(torch.empty(0), requires_grad=False)
    out.mkdir()
    path = out / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    if fsync:
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


if __name__ == "__main__":
    source, out, format, names, *rest = sys.argv[1:]
    main(Path(source), Path(out), Format(format), json.loads(Path(names).read_text()), fsync=rest == ["--fsync"])
