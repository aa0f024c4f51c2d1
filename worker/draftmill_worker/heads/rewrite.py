"""Changing which tensors a variant directory's shards hold, so that no write can reach a file it is linked to.

A shard that changes is first renamed aside: its name is free when the new one is written, whatever a writer does to an
existing file. safetensors up to 0.7 truncates it, and with it the source's.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftmill.plans import OutputTensor
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.checkpoint import INDEX, WEIGHTS_SUFFIX
from draftmill_worker.checkpoint.headers import TensorInfo, read_header
from draftmill_worker.quantize.writer import WeightWriter

EXTRA = "model_extra_tensors.safetensors"
"""Takes what the source does not have; the name is the one that a published patch for draft vocabularies looks for."""
CHUNK = 1 << 22
ASIDE = ".aside"


@dataclass(frozen=True)
class Stored:
    """A tensor to write, and its bytes in pieces."""

    output: OutputTensor
    pieces: Callable[[], Iterable["np.ndarray[tuple[int, ...], np.dtype[np.uint8]]"]]


Write = Callable[[Path, Sequence[Stored]], None]


def write_file(path: Path, tensors: Sequence[Stored]) -> None:
    """A new safetensors file, some bytes at a time."""
    with WeightWriter(path, [tensor.output for tensor in tensors], fsync=False) as writer:
        for tensor in tensors:
            offset = 0
            for piece in tensor.pieces():
                writer.put(tensor.output.name, offset, piece)
                offset += piece.nbytes
        writer.finish()


def stored_in(path: Path, info: TensorInfo, name: str | None = None) -> Stored:
    """A tensor of a file, byte for byte; under another name if one is given."""
    output = OutputTensor(name=name or info.name, dtype=info.dtype, shape=info.shape)
    return Stored(output, lambda: _bytes(path, info))


def rewrite(folder: Path, remove: Collection[str], add: Sequence[Stored], write: Write = write_file) -> tuple[str, ...]:
    """Take tensors out of the shards that hold them and put new ones into EXTRA; the shards that changed.

    A tensor that is added is first removed wherever it is, so that a step done twice is done once. A shard that is left
    without tensors is gone. The index names what is there then, exactly. ProblemError("incomplete-checkpoint") for a
    name to remove that no shard has.
    """
    headers = {path.name: read_header(path) for path in sorted(folder.glob(f"*{WEIGHTS_SUFFIX}"))}
    _check_there(headers, remove)
    gone = {*remove, *(tensor.output.name for tensor in add)}
    changed = {file for file, tensors in headers.items() if gone & tensors.keys()}
    if add:
        changed.add(EXTRA)
    for file in sorted(changed):
        kept = [info for name, info in headers.get(file, {}).items() if name not in gone]
        _replace(folder / file, kept, add if file == EXTRA else (), write)
    write_index(folder)
    return tuple(sorted(changed))


def _check_there(headers: dict[str, dict[str, TensorInfo]], remove: Collection[str]) -> None:
    there = {name for tensors in headers.values() for name in tensors}
    missing = sorted(set(remove) - there)
    if missing:
        offenders = [Offender(where=name, message="no shard holds it") for name in missing]
        raise ProblemError("incomplete-checkpoint", "tensors to replace are not there", offenders)


def _replace(path: Path, kept: Sequence[TensorInfo], add: Sequence[Stored], write: Write) -> None:
    aside = path.with_name(f".{path.name}{ASIDE}")
    if path.exists():
        path.rename(aside)
    tensors = [*(stored_in(aside, info) for info in kept), *add]
    if tensors:
        write(path, tensors)
    aside.unlink(missing_ok=True)


def _bytes(path: Path, info: TensorInfo) -> Iterator["np.ndarray[tuple[int, ...], np.dtype[np.uint8]]"]:
    for start in range(info.start, info.end, CHUNK):
        yield np.fromfile(path, np.uint8, min(CHUNK, info.end - start), offset=start)


def write_index(folder: Path) -> None:
    """The index of the shards that are there: every tensor, and the bytes of all."""
    headers = {path.name: read_header(path) for path in sorted(folder.glob(f"*{WEIGHTS_SUFFIX}"))}
    weight_map = {name: file for file, tensors in headers.items() for name in tensors}
    size = sum(info.nbytes for tensors in headers.values() for info in tensors.values())
    document = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / INDEX, document)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """By a rename: whatever had the name keeps its bytes."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    beside.replace(path)
