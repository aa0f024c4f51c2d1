"""What the checks read: a variant, its source and what was meant, opened when asked for."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from draftmill.heads import HeadPlan
from draftmill.reports import Manifest
from draftmill_worker.checkpoint.checkpoint import Checkpoint, open_checkpoint
from draftmill_worker.checkpoint.headers import TensorInfo
from draftmill_worker.heads.tensors import read
from draftmill_worker.quantize.formats.pack_quantized import PACKED, SHAPE


class View:
    def __init__(
        self,
        source: Path,
        variant: Path,
        plan: HeadPlan,
        identity: dict[str, Any] | None = None,
        manifest: Manifest | None = None,
    ) -> None:
        self.source, self.variant, self.plan = source, variant, plan
        self.identity, self.manifest = identity, manifest

    @cached_property
    def before(self) -> Checkpoint:
        return open_checkpoint(self.source)

    @cached_property
    def after(self) -> Checkpoint:
        return open_checkpoint(self.variant)

    def read(self, name: str) -> Tensor:
        """Of the variant."""
        info = self.after.tensors[name]
        return read(self.variant / info.file, info)

    def packed(self) -> Iterator[tuple[str, TensorInfo, int, int]]:
        """Each rewritten module that is there: name, packed tensor, columns, bits of its group."""
        for group in self.plan.groups:
            for module in group.modules:
                info = self.after.tensors.get(f"{module}.{PACKED}")
                shape = self.after.tensors.get(f"{module}.{SHAPE}")
                if info is not None and shape is not None and shape.shape == (2,) and shape.dtype == "I64":
                    yield module, info, int(self.read(shape.name)[1]), group.bits
