"""What a boot should have been: the models as they were given, and how the engine must have built the drafter."""

import hashlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from draftmill.formats import Format
from draftmill.plans import Fate, Plan
from draftmill.receipts import EngineView, ModuleRecord
from draftmill.reports import Manifest
from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.checkpoint.drafter import Drafter, Module
from draftmill_worker.quantize.ignore import runtime_names
from draftmill_worker.receipts.collect import EMULATION

UNQUANTIZED = frozenset({None, "UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"})
PLAIN_DTYPES = frozenset({"bfloat16", "float16", "float32"})
_MODELOPT = frozenset({"ModelOptLinearMethod"})
_FP4_BLOCK = "scale(f8e4m3fn,{},GroupShape(row=1, col=16)),scale2(f32,static,per_tensor),symmetric)"


@dataclass(frozen=True)
class Scheme:
    """How vLLM 0.32 runs a format (quantization/modelopt.py `resolve`, or a scheme of compressed-tensors), and what it
    then stores."""

    weight: str
    """The quantization keys, as vLLM writes them."""
    activation: str | None
    dtypes: frozenset[str]
    """Of the stored weight."""
    scales: frozenset[str]
    """Parameters that the method leaves on the module."""
    methods: frozenset[str] = _MODELOPT
    emulated_dtypes: frozenset[str] = frozenset()
    """Of the stored weight under an emulating kernel that replaces it by its numbers when it is loaded."""

    def holds(self, dtype: str | None, kernel: str | None) -> bool:
        """Whether a weight of `dtype` under `kernel` is one of this scheme. Marlin kernels pack anything into int32."""
        name = kernel or ""
        packed = dtype == "int32" and name.startswith("Marlin")
        return packed or dtype in self.dtypes or (EMULATION in name and dtype in self.emulated_dtypes)


def _integers(kind: str) -> Scheme:
    """compressed-tensors' CompressedTensorsWNA16, `kind` being vLLM's name of the stored integers."""
    return Scheme(
        weight=f"{kind}, group 128",
        activation=None,
        dtypes=frozenset({"int32"}),
        scales=frozenset({"weight_scale"}),
        methods=frozenset({"CompressedTensorsLinearMethod"}),
    )


SCHEMES: Mapping[Format, Scheme] = MappingProxyType(
    {
        Format.FP8: Scheme(
            weight="QuantKey(f8e4m3fn,scale(f32,static,per_tensor),symmetric)",
            activation="QuantKey(f8e4m3fn,scale(f32,static,per_tensor),symmetric)",
            dtypes=frozenset({"float8_e4m3fn"}),
            scales=frozenset({"weight_scale", "input_scale"}),
        ),
        Format.FP8_PC_PT: Scheme(
            weight="QuantKey(f8e4m3fn,scale(f32,static,per_token),symmetric)",
            activation="QuantKey(f8e4m3fn,scale(f32,dynamic,per_token),symmetric)",
            dtypes=frozenset({"float8_e4m3fn"}),
            scales=frozenset({"weight_scale"}),
        ),
        Format.NVFP4: Scheme(
            weight=f"QuantKey(u8,{_FP4_BLOCK.format('static')}",
            activation=f"QuantKey(u8,{_FP4_BLOCK.format('dynamic')}",
            dtypes=frozenset({"uint8"}),
            scales=frozenset({"weight_scale", "weight_global_scale", "input_global_scale"}),
        ),
        Format.W4A16_NVFP4: Scheme(
            weight=f"QuantKey(u8,{_FP4_BLOCK.format('static')}",
            activation=None,
            dtypes=frozenset({"uint8"}),
            scales=frozenset({"weight_scale", "weight_global_scale"}),
        ),
        Format.MXFP8: Scheme(
            weight="QuantKey(f8e4m3fn,scale(u8,static,GroupShape(row=1, col=32)),symmetric)",
            activation="QuantKey(f8e4m3fn,scale(u8,dynamic,GroupShape(row=1, col=32)),symmetric)",
            dtypes=frozenset({"float8_e4m3fn"}),
            scales=frozenset({"weight_scale"}),
            emulated_dtypes=frozenset({"bfloat16"}),
        ),
        Format.FP8_PB_WO: Scheme(
            weight="QuantKey(f8e4m3fn,scale(f32,static,GroupShape(row=128, col=128)),symmetric)",
            activation="QuantKey(f8e4m3fn,scale(f32,dynamic,GroupShape(row=1, col=128)),symmetric)",
            dtypes=frozenset({"float8_e4m3fn"}),
            scales=frozenset({"weight_scale"}),
        ),
        Format.INT4_G128: _integers("uint4b8"),
        Format.INT8_G128: _integers("uint8b128"),
    }
)


@dataclass(frozen=True)
class Given:
    """A model directory that the engine was started with."""

    manifest: Manifest
    commit: str | None = None
    from_repo: bool = True
    """Whether it is from a repository, so that it must have a commit."""
    variant: str | None = None


@dataclass(frozen=True)
class BuiltModule:
    """One module of the drafter as the engine must have built it."""

    module: Module
    asked: frozenset[str]
    """Names the engine asks its quantization config for."""
    placed: frozenset[str]
    """The same in the drafter's own module tree, where layers count from 0."""
    quantized: bool


@dataclass(frozen=True)
class Expected:
    target: Given
    target_layers: int
    target_vocab: int
    drafter: Drafter | None = None
    """Reading of the drafter's source; None for the target alone."""
    drafter_files: Given | None = None
    plan: Plan | None = None
    """Of the variant; None for a drafter that is not quantized."""
    num_speculative_tokens: int | None = None
    embedded: bool = False
    """Whether target and drafter are one directory, and the target in it must be as it was."""
    draft_map_sha256: str | None = None
    """`draft_map_sha256` of the drafter's checkpoint."""

    @cached_property
    def modules(self) -> tuple[BuiltModule, ...]:
        if self.drafter is None:
            return ()
        drafter, plan = self.drafter, self.plan
        quantized = set() if plan is None else {t.name for t in plan.tensors if t.fate is Fate.QUANTIZED}
        return tuple(
            BuiltModule(
                module=module,
                asked=frozenset(runtime_names(drafter, module, self.target_layers)),
                placed=frozenset(name.removeprefix("draft_model.") for name in runtime_names(drafter, module, 0)),
                quantized=any(f"{member}.weight" in quantized for member in module.members),
            )
            for module in drafter.modules
        )

    @cached_property
    def head(self) -> BuiltModule | None:
        return next((built for built in self.modules if is_head(built)), None)


def is_head(built: BuiltModule) -> bool:
    return any(name.endswith("lm_head") for name in built.asked)


def records(view: EngineView, modules: tuple[BuiltModule, ...]) -> list[tuple[ModuleRecord, BuiltModule | None]]:
    """Each module that the engine has, with the one it should be; None for one that should not be there.

    By the prefix it asked with, where the engine recorded that; else by its name, which may be either's.
    """
    asked = {name: built for built in modules for name in built.asked}
    placed = {name: built for built in modules for name in built.placed}
    names = [module.name for module in view.modules if not module.prefix]
    by_name = max((placed, asked), key=lambda table: sum(name in table for name in names))
    return [
        (module, asked.get(module.prefix) if module.prefix else by_name.get(module.name)) for module in view.modules
    ]


def draft_map_sha256(folder: Path, checkpoint: Checkpoint) -> str | None:
    """SHA-256 of the checkpoint's `d2t` as little-endian int64; None where it stores none.

    ValueError for one that is not integers of 32 or 64 bits.
    """
    info = next((tensor for name, tensor in checkpoint.tensors.items() if name.rpartition(".")[2] == "d2t"), None)
    if info is None:
        return None
    with (folder / info.file).open("rb") as file:
        file.seek(info.start)
        data = file.read(info.nbytes)
    if info.dtype == "I32":
        data = array("q", array("i", data)).tobytes()
    elif info.dtype != "I64":
        raise ValueError(f"{info.name} is {info.dtype}")
    return hashlib.sha256(data).hexdigest()
