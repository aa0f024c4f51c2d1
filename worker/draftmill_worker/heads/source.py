"""Where the unquantized head is: in the checkpoint, under another name, or in a backup beside a requantized shard."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.checkpoint.headers import TensorInfo, read_header
from draftmill_worker.heads.tensors import FLOATS

BACKUPS = (".bak", ".bak-orig")
"""What tools that requantize a head in place leave beside its shard."""
_HEAD = re.compile(r"^(?:(?!mtp\.)[\w.]+\.)?lm_head\.weight$")
_REWRITTEN = re.compile(r"^(?:(?!mtp\.)[\w.]+\.)?lm_head\.(?:weight_packed|weight_scale|qweight)$")
_EMBEDDING = re.compile(r"^(?!mtp\.)(?:[\w.]+\.)?embed_tokens\.weight$")
# They build their head without a quantization config in vLLM 0.32, and would not find its weight.
_PLAIN_HEADS = ("Qwen3Next",)
_DRAFTING = ("Qwen3_5", "Qwen3Next")
"""Models for which the plugin has a draft vocabulary. Others may ignore its tensors, and say nothing."""


@dataclass(frozen=True)
class HeadSource:
    path: Path
    """File that holds the unquantized head."""
    tensor: TensorInfo
    module: str
    """The head's name in the checkpoint, such as `lm_head`."""
    tied: bool
    """The head is the embedding; a rewritten one is stored beside it."""

    @property
    def said(self) -> str:
        return f"{self.path.name}: {self.tensor.name}"


def find_head(folder: Path, checkpoint: Checkpoint) -> HeadSource:
    """The unquantized head [vocabulary, hidden size].

    ProblemError("head-source-missing") with every place that was looked at; ("head-refused") for a head of another
    shape than its rewritten form says.
    """
    tensors = checkpoint.tensors
    stored = [tensor for name, tensor in tensors.items() if _HEAD.match(name)]
    floating = [tensor for tensor in stored if tensor.dtype in FLOATS and len(tensor.shape) == 2]
    if len(floating) == 1 and not any(_REWRITTEN.match(name) for name in tensors):
        module = floating[0].name.removesuffix(".weight")
        return HeadSource(folder / floating[0].file, floating[0], module, tied=False)
    rewritten = [tensor for name, tensor in tensors.items() if _REWRITTEN.match(name)] or stored
    if rewritten:
        return _backed_up(folder, rewritten[0])
    if is_tied(checkpoint.config):
        return _embedding(folder, checkpoint)
    message = "no lm_head is stored, and the configuration does not tie it to the embedding"
    raise ProblemError("head-source-missing", message, [Offender(where="lm_head.weight", message=message)])


def check_read_packed(checkpoint: Checkpoint) -> None:
    """ProblemError("head-refused") for a model whose engine class reads no quantized head."""
    for name in _architectures(checkpoint):
        if name.startswith(_PLAIN_HEADS):
            raise _refused("head", f"vLLM 0.32 builds the head of {name} without a quantization config")


def check_drafts(checkpoint: Checkpoint) -> None:
    """ProblemError("head-refused") for a model whose MTP block nothing gives a draft vocabulary in the engine."""
    for name in _architectures(checkpoint):
        if not name.startswith(_DRAFTING):
            message = f"the plugin has draft vocabularies for MTP blocks of Qwen3.5 and Qwen3-Next, not of {name}"
            raise _refused("draft_vocab", message)


def _architectures(checkpoint: Checkpoint) -> list[str]:
    names = checkpoint.config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _refused(where: str, message: str) -> ProblemError:
    return ProblemError("head-refused", message, [Offender(where=where, message=message)])


def is_tied(config: Mapping[str, Any]) -> bool:
    inner = config.get("text_config")
    own = config.get("tie_word_embeddings")
    return bool(own if own is not None else isinstance(inner, Mapping) and inner.get("tie_word_embeddings"))


def _embedding(folder: Path, checkpoint: Checkpoint) -> HeadSource:
    found = [tensor for name, tensor in checkpoint.tensors.items() if _EMBEDDING.match(name)]
    if len(found) != 1 or found[0].dtype not in FLOATS:
        names = [tensor.name for tensor in found]
        message = f"the head is tied, and {names or 'no embedding'} cannot be it"
        offenders = [Offender(where=tensor.name, message=tensor.dtype) for tensor in found]
        raise ProblemError("head-source-missing", message, offenders)
    return HeadSource(folder / found[0].file, found[0], "lm_head", tied=True)


def _backed_up(folder: Path, rewritten: TensorInfo) -> HeadSource:
    """The head in a backup of its shard. The oldest copy has the longest name."""
    offenders = []
    module = rewritten.name.rpartition(".")[0]
    for suffix in reversed(BACKUPS):
        path = folder / f"{rewritten.file}{suffix}"
        if not path.is_file():
            offenders.append(Offender(where=path.name, message="is not there"))
            continue
        tensor = read_header(path).get(f"{module}.weight")
        if tensor is not None and tensor.dtype in FLOATS and len(tensor.shape) == 2:
            if tensor.shape[0] != rewritten.shape[0]:
                message = f"{tensor.shape[0]} rows, and {rewritten.file} has {rewritten.shape[0]}"
                raise ProblemError("head-refused", message, [Offender(where=path.name, message=message)])
            return HeadSource(path, tensor, module, tied=False)
        offenders.append(Offender(where=path.name, message=f"holds no unquantized {module}.weight"))
    names = " nor ".join(f"{rewritten.file}{suffix}" for suffix in BACKUPS)
    message = f"{rewritten.name} is quantized already, and its original is in neither {names}"
    raise ProblemError("head-source-missing", message, list(reversed(offenders)))
