"""The plan: every tensor of the source, its one fate and its one reason."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from draftmill._model import Model
from draftmill.formats import Format
from draftmill.problems import Problem


class Family(StrEnum):
    EAGLE = "eagle"
    """EAGLE-1: a layer over the target's last state, with the target's head."""
    EAGLE3 = "eagle3"
    DFLASH = "dflash"
    DSPARK = "dspark"
    MTP = "mtp"
    DRAFT_MODEL = "draft_model"
    MEDUSA = "medusa"


class Fate(StrEnum):
    QUANTIZED = "quantized"
    KEPT = "kept"
    CAST = "cast"


class OutputTensor(Model):
    name: str
    dtype: str
    """safetensors dtype name, such as `BF16`, `F8_E4M3`, `U8`."""
    shape: tuple[int, ...]


class TensorPlan(Model):
    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    """Weight file it is read from, and written to under the same name."""
    fate: Fate
    reason: str
    """Why, in a few words: `2-D linear`, `embedding`, `bfloat16 requested`."""
    group: str | None = None
    """Fused sibling set that shares a scale, by the runtime's fused module name in checkpoint name space,
    such as `layers.0.self_attn.qkv_proj`."""
    outputs: tuple[OutputTensor, ...]


class UntouchedFile(Model):
    """A weight file that holds no tensor of the drafter: it goes into the variant whole, byte for byte."""

    file: str
    tensors: int
    nbytes: int
    """Bytes of its tensors, its header not counted."""


class Head(StrEnum):
    OWN = "own"
    BORROWED = "borrowed"
    TIED = "tied"


class Plan(Model):
    schema_: Literal["draftmill.plan/v1"] = Field(default="draftmill.plan/v1", alias="schema")
    family: Family
    dialect: str
    """Which of a family's layouts was read, such as `dflash_config nested`."""
    head: Head
    """Whose lm_head the drafter uses at run time."""
    format: Format
    scales: Literal["fused", "reference"]
    dtype: Literal["bfloat16", "float16", "keep"]
    nvfp4_scale_search: bool = False
    """Whether block scales are those of least weight error."""
    tensors: tuple[TensorPlan, ...]
    """Every tensor of the files that are written."""
    untouched: tuple[UntouchedFile, ...] = ()
    """Files of the target whose checkpoint holds the drafter; their tensors are not listed one by one."""
    ignore: tuple[str, ...]
    """Modules the engine must build unquantized: checkpoint and runtime names, per layer, with fused names; of a target
    in the same checkpoint, a pattern per layer."""
    merged: tuple[str, ...] = ()
    """Checkpoint's modules that were quantized before; their tensors are kept byte for byte."""
    source_bytes: int
    variant_bytes: int
    warnings: tuple[str, ...] = ()


class ScaleSearch(Model):
    """What searched NVFP4 block scales gained: the mean over quantized weights of ||Q(w) - w||^2 / ||w||^2."""

    relative_mse: float
    plain_relative_mse: float
    """The same with the scales of plain max."""


class Preflight(Model):
    """What `POST /v1/preflight` answers: a plan from headers alone, or why there can be none."""

    ok: bool
    commit: str | None = None
    download_bytes: int | None = None
    plan: Plan | None = None
    problem: Problem | None = None
