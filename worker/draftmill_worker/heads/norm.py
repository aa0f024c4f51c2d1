"""The last normalisation of a language model, whose output its head reads."""

from pathlib import Path

import numpy as np
from torch import nn

NAMES = ("norm", "final_layernorm", "final_norm", "norm_f", "ln_f")
"""What models call it; a decoder layer's norms have other names or lie deeper."""


def final_norm(model: nn.Module) -> tuple[str, nn.Module] | None:
    """The module of such a name that lies next to the decoder layers, nearest to the root; its name first.

    A vision tower has a norm too, beside its own blocks: what lies under such a tower is passed over.
    """
    found = [
        (name.count("."), name, module)
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in NAMES and not _aside(name)
    ]
    beside = [item for item in found if _has_layers(model, item[1].rpartition(".")[0])]
    if not beside:
        return None
    _, name, module = min(beside, key=lambda item: item[:2])
    return name, module


def _aside(name: str) -> bool:
    return any(part.startswith(("visual", "vision", "audio", "mtp")) for part in name.split("."))


def _has_layers(model: nn.Module, parent: str) -> bool:
    children = dict(model.get_submodule(parent).named_children())
    return any(isinstance(children.get(name), nn.ModuleList) for name in ("layers", "h", "blocks"))


def mapped(path: Path, start: int, rows: int, columns: int) -> "np.memmap[tuple[int, int], np.dtype[np.int16]]":
    """bf16's bits, to write into."""
    return np.memmap(path, np.int16, "r+", start, (rows, columns))
