"""What the checks read: a variant and its source, by headers and mapped bytes, opened once and only when asked."""

import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from draftmill.formats import FORMATS, FormatSpec
from draftmill.plans import Fate, OutputTensor, Plan, TensorPlan
from draftmill.problems import Offender, ProblemError
from draftmill.reports import Manifest
from draftmill_worker.checkpoint.checkpoint import CONFIG, INDEX, WEIGHTS_SUFFIX, Checkpoint, open_checkpoint
from draftmill_worker.checkpoint.config import MAX_INDEX_BYTES, load_object
from draftmill_worker.checkpoint.families.settings import flatten
from draftmill_worker.checkpoint.findings import Findings
from draftmill_worker.checkpoint.headers import TensorInfo, read_header
from draftmill_worker.verify import compressed
from draftmill_worker.verify.reference import amax_of
from draftmill_worker.verify.tensors import Tensors

if TYPE_CHECKING:
    import torch

HF_QUANT_CONFIG = "hf_quant_config.json"
PLAN = "plan.json"
CARD = "README.md"
SINGLE_FILE = "model.safetensors"


@dataclass(frozen=True)
class Linear:
    """One module that the plan quantizes."""

    name: str
    """Without `.weight`."""
    plan: TensorPlan

    def tensor(self, suffix: str) -> str:
        return f"{self.name}.{suffix}"


class View:
    def __init__(
        self,
        source: Path,
        variant: Path,
        plan: Plan,
        *,
        source_identity: Mapping[str, Any] | None = None,
        source_manifest: Manifest | None = None,
        deep: bool = True,
        cache: Path | None = None,
    ) -> None:
        self.source = source
        self.variant = variant
        self.plan = plan
        self.source_identity = source_identity
        self.source_manifest = source_manifest
        self.deep = deep
        self.cache = cache
        self._tops: dict[str, torch.Tensor] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.written.close()
        self.original.close()

    @cached_property
    def spec(self) -> FormatSpec:
        return FORMATS[self.plan.format]

    @cached_property
    def entries(self) -> tuple[tuple[str, int, int], ...]:
        """(path relative to the variant, mode, number of hard links) of everything in it but plain folders."""
        found = []
        for path in sorted(self.variant.rglob("*")):
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                found.append((path.relative_to(self.variant).as_posix(), status.st_mode, status.st_nlink))
        return tuple(found)

    @cached_property
    def files(self) -> frozenset[str]:
        return frozenset(path for path, _, _ in self.entries)

    @cached_property
    def planned_files(self) -> frozenset[str]:
        return self.whole_files.union(tensor.file for tensor in self.plan.tensors)

    @cached_property
    def whole_files(self) -> frozenset[str]:
        """Files that the plan passes on as they are; their tensors are not in it one by one."""
        return frozenset(file.file for file in self.plan.untouched)

    @cached_property
    def headers(self) -> dict[str, dict[str, TensorInfo]]:
        """Header of each weight file that the plan names. Raises `malformed-safetensors`, `incomplete-checkpoint`."""
        missing = sorted(self.planned_files - self.files)
        if missing:
            offenders = [Offender(where=file, message="the plan writes this file; it is not there") for file in missing]
            raise ProblemError("incomplete-checkpoint", "weight files are missing", offenders)
        return {file: read_header(self.variant / file, file) for file in sorted(self.planned_files)}

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        return {name: info for header in self.headers.values() for name, info in header.items()}

    @cached_property
    def expected(self) -> dict[str, tuple[OutputTensor, TensorPlan]]:
        """The plan's output set."""
        return {output.name: (output, tensor) for tensor in self.plan.tensors for output in tensor.outputs}

    @cached_property
    def linears(self) -> tuple[Linear, ...]:
        return tuple(
            Linear(tensor.name.removesuffix(".weight"), tensor)
            for tensor in self.plan.tensors
            if tensor.fate is Fate.QUANTIZED
        )

    @cached_property
    def unquantized(self) -> tuple[TensorPlan, ...]:
        return tuple(tensor for tensor in self.plan.tensors if tensor.fate is not Fate.QUANTIZED)

    @cached_property
    def source_checkpoint(self) -> Checkpoint:
        return open_checkpoint(self.source)

    @cached_property
    def original(self) -> Tensors:
        """Tensors of the source."""
        return Tensors(self.source)

    @cached_property
    def written(self) -> Tensors:
        """Tensors of the variant."""
        return Tensors(self.variant)

    def before(self, tensor: TensorPlan) -> "torch.Tensor":
        return self.original.get(tensor.file, tensor.name)

    def after(self, tensor: TensorPlan, name: str) -> "torch.Tensor":
        return self.written.get(tensor.file, name)

    def top(self, linear: Linear) -> "torch.Tensor":
        """The amax that the module's per-tensor scale comes from: its own, or its fused group's."""
        import torch

        key = linear.plan.group if self.plan.scales == "fused" else None
        if (key or linear.name) not in self._tops:
            group = [other for other in self.linears if other.plan.group == key] if key else [linear]
            found = [amax_of(self.before(member.plan), self.plan.dtype) for member in group]
            self._tops[key or linear.name] = torch.stack(found).max()
        return self._tops[key or linear.name]

    @cached_property
    def config(self) -> dict[str, Any]:
        return self._document(CONFIG)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """config.json with speculators' nested dialect made flat, as the engine reads it."""
        return flatten(self.config, Findings())[0].values

    @cached_property
    def hf_quant_config(self) -> dict[str, Any]:
        """Empty where the format has no reader of such a file, and none is there."""
        if self.spec.quant_method == compressed.METHOD and HF_QUANT_CONFIG not in self.files:
            return {}
        return self._document(HF_QUANT_CONFIG)

    @cached_property
    def index(self) -> dict[str, Any] | None:
        return self._document(INDEX) if INDEX in self.files else None

    @cached_property
    def recorded_plan(self) -> dict[str, Any]:
        return self._document(PLAN)

    @cached_property
    def card(self) -> str:
        return self._read(CARD).decode("utf-8", errors="replace")

    @property
    def quantization(self) -> dict[str, Any]:
        """config.json's `quantization_config`; empty when there is none."""
        found = self.config.get("quantization_config")
        return found if isinstance(found, dict) else {}

    @property
    def ignore(self) -> tuple[str, ...]:
        found = self.quantization.get("ignore")
        return tuple(item for item in found if isinstance(item, str)) if isinstance(found, list) else ()

    def weight_files(self) -> Iterator[str]:
        """Files in the variant, at any depth, that some loader would read as weights."""
        suffixes = (WEIGHTS_SUFFIX, ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf", ".h5", ".msgpack", ".onnx")
        return (file for file in sorted(self.files) if file.endswith(suffixes))

    def _document(self, name: str) -> dict[str, Any]:
        return load_object(self._read(name), name, MAX_INDEX_BYTES)

    def _read(self, name: str) -> bytes:
        if name not in self.files:
            raise ProblemError("malformed-config", f"{name} is not there", [Offender(where=name, message="missing")])
        with (self.variant / name).open("rb") as stream:
            return stream.read(MAX_INDEX_BYTES + 1)


def same_json(left: Any, right: Any) -> bool:
    """Equality that tells 1 from true and from 1.0."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
