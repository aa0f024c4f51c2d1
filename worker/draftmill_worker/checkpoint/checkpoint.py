"""A checkpoint folder as its headers, index and configuration describe it.

The engine's loaders read every tensor of each listed file and never look for what is missing, so the index and the
files must agree exactly, both ways, before anything is planned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.auto_map import auto_map_files
from draftmill_worker.checkpoint.config import MAX_CONFIG_BYTES, MAX_INDEX_BYTES, load_object
from draftmill_worker.checkpoint.findings import Findings
from draftmill_worker.checkpoint.headers import TensorInfo, read_header

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
WEIGHTS_SUFFIX = ".safetensors"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class Checkpoint:
    config: dict[str, Any]
    """config.json as parsed, unchanged."""
    tensors: dict[str, TensorInfo]
    """Every tensor by name, in the order of (file, start)."""
    files: tuple[str, ...]
    """Weight files, sorted."""
    index: dict[str, str] | None
    """`weight_map` where there is an index."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, headers not counted."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, from its headers alone.

    Raises `malformed-config`, `malformed-safetensors`, `pickle-refused`, `no-weights`, `incomplete-checkpoint`,
    `duplicate-tensor`, `unlisted-weights` or `unsafe-path`, with every offender.
    """
    siblings = sorted(path.name for path in folder.iterdir() if path.is_file())
    index = folder / INDEX
    return from_headers(
        _read(folder / CONFIG, MAX_CONFIG_BYTES) if CONFIG in siblings else None,
        _read(index, MAX_INDEX_BYTES) if INDEX in siblings else None,
        {name: read_header(folder / name) for name in siblings if name.endswith(WEIGHTS_SUFFIX)},
        siblings,
    )


def from_headers(
    config: bytes | None,
    index: bytes | None,
    headers: Mapping[str, Mapping[str, TensorInfo]],
    siblings: Sequence[str],
) -> Checkpoint:
    """`open_checkpoint` for headers that came from elsewhere, such as Range requests.

    `headers` maps each weight file to its parsed header; `siblings` are the names of all files in the folder.
    """
    if config is None:
        offender = Offender(where=CONFIG, message="the file is not there")
        raise ProblemError("malformed-config", "there is no config.json", [offender])
    parsed = load_object(config, CONFIG)
    auto_map_files(parsed, CONFIG)  # a path that leaves the folder is refused before anything is read
    if not headers:
        raise _no_weights(siblings)
    weight_map = None if index is None else _weight_map(load_object(index, INDEX, MAX_INDEX_BYTES))
    findings = Findings()
    if weight_map is not None:
        _check_index(weight_map, headers, findings)
    _check_duplicates(headers, findings)
    findings.raise_any()
    files = tuple(sorted(headers))
    tensors = {name: tensor for file in files for name, tensor in headers[file].items()}
    if not tensors:
        raise ProblemError("no-weights", "the weight files hold no tensors")
    return Checkpoint(parsed, tensors, files, weight_map)


def _read(path: Path, bound: int) -> bytes:
    with path.open("rb") as stream:
        return stream.read(bound + 1)  # one more than is allowed, so that the reader can refuse it


def _no_weights(siblings: Sequence[str]) -> ProblemError:
    pickles = [name for name in siblings if name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        message = "pickle can run code when it is loaded; publish the weights as safetensors"
        return ProblemError("pickle-refused", message, [Offender(where=name, message=message) for name in pickles])
    return ProblemError("no-weights", "there is no .safetensors file in the folder")


def _weight_map(index: dict[str, Any]) -> dict[str, str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        offender = Offender(where=f"{INDEX}: weight_map", message="weight_map must map tensor names to file names")
        raise ProblemError("malformed-config", f"{INDEX} has no usable weight_map", [offender])
    unsafe = sorted({file for file in weight_map.values() if "/" in file or "\\" in file or file.startswith(".")})
    if unsafe:
        offenders = [Offender(where=INDEX, message="a weight file is a plain name", value=file) for file in unsafe]
        raise ProblemError("unsafe-path", f"{INDEX} names files outside the folder", offenders)
    return weight_map


def _check_index(
    weight_map: dict[str, str], headers: Mapping[str, Mapping[str, TensorInfo]], findings: Findings
) -> None:
    for file in sorted(set(weight_map.values()) - headers.keys()):
        findings.add("incomplete-checkpoint", file, "the index names this file; it is not there")
    for name, file in weight_map.items():
        if file in headers and name not in headers[file]:
            findings.add("incomplete-checkpoint", name, f"the index places this tensor in {file}; it is not there")
    for file in sorted(headers.keys() - set(weight_map.values())):
        findings.add("unlisted-weights", file, "the index names no tensor of this file, yet loaders may read it")
    for file, tensors in headers.items():
        if file not in weight_map.values():
            continue
        for name in tensors:
            if name not in weight_map:
                findings.add("unlisted-weights", name, f"{file} holds this tensor; the index does not name it")


def _check_duplicates(headers: Mapping[str, Mapping[str, TensorInfo]], findings: Findings) -> None:
    places: dict[str, list[str]] = {}
    for file, tensors in headers.items():
        for name in tensors:
            places.setdefault(name, []).append(file)
    for name, files in places.items():
        if len(files) > 1:
            findings.add("duplicate-tensor", name, f"stored in {', '.join(sorted(files))}; which one loads is chance")
