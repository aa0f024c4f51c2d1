"""The checks, by topic. Importing this registers them all, in the order they run."""

from draftmill_worker.verify.checks import (  # noqa: I001  (the order of running: what others build on comes first)
    files,
    names,
    schemes,
    source,
    kept,
    target,
    scales,
    quantized,
    parity,
    configs,
    ignore,
    heads,
    sidecars,
    card,
)
from draftmill_worker.verify.registry import REGISTRY

__all__ = [
    "REGISTRY",
    "card",
    "configs",
    "files",
    "heads",
    "ignore",
    "kept",
    "names",
    "parity",
    "quantized",
    "scales",
    "schemes",
    "sidecars",
    "source",
    "target",
]
