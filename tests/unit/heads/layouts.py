"""The two layouts of published checkpoints with an MTP block, and a writer that treats files as safetensors 0.7 did."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from draftmill_worker.heads.rewrite import Stored
from draftmill_worker.quantize.layout import layout
from tests.fixtures.heads import target
from tests.unit.heads import captured

BODY = {
    "targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
    "input_activations": None,
    "output_activations": None,
}
"""A body that a published checkpoint already quantized; nothing here is stored so, as nothing here reads the body."""


def shards(folder: Path, *, tied: bool = False) -> Path:
    """Many shards, a quantization config in both places, one backup that an earlier tool left."""
    target.build(folder, exact=True, tied=tied, shards=3, shape=captured.SHAPE)
    section = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": BODY},
        "ignore": ["lm_head", "re:^mtp.*", "model.embed_tokens"],
    }
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
    (folder / "quantization_config.json").write_text(json.dumps(section))
    (folder / "model-00001-of-00003.safetensors.bak").write_bytes(b"an earlier shard")
    return folder


def streamed(folder: Path, *, tied: bool = False, index: bool = True) -> Path:
    """model.safetensors and model-mtp.safetensors, no quantization config, preprocessors and a recipe."""
    target.build(folder, exact=True, tied=tied, shape=captured.SHAPE)
    whole = load_file(folder / "model.safetensors")
    parts = {
        "model.safetensors": {name: value for name, value in whole.items() if not name.startswith("mtp.")},
        "model-mtp.safetensors": {name: value for name, value in whole.items() if name.startswith("mtp.")},
    }
    for name, tensors in parts.items():
        save_file(tensors, folder / name, metadata={"format": "pt"})
    if index:
        weight_map = {name: file for file, tensors in parts.items() for name in tensors}
        size = sum(value.nbytes for value in whole.values())
        document = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(document))
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / name).write_text("{}")
    (folder / "recipe.yaml").write_text("default_stage: {}\n")
    (folder / ".cache").mkdir()
    return folder


LAYOUTS = {"shards": shards, "streamed": streamed}


def hub_cache(folder: Path, source: Path) -> Path:
    """The same as a snapshot in a cache of the Hub: links into a folder of blobs."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "0123abcd"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(path for path in source.iterdir() if path.is_file())):
        (blobs / f"{number}").write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(Path("..") / ".." / "blobs" / f"{number}")
    return snapshot


def state(folder: Path) -> dict[str, tuple[int, str]]:
    """Inode and SHA-256 of every file."""
    return {
        path.name: (path.stat().st_ino, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


def truncating(path: Path, tensors: Sequence[Stored]) -> None:
    """As safetensors up to 0.7 writes: everything in memory first, then over the file that has the name."""
    found = layout([tensor.output for tensor in tensors])
    data = bytearray(found.header) + bytearray(found.size - len(found.header))
    for tensor in tensors:
        start = found.starts[tensor.output.name]
        for piece in tensor.pieces():
            data[start : start + piece.nbytes] = np.ascontiguousarray(piece).tobytes()
            start += piece.nbytes
    with path.open("wb") as file:
        file.write(data)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Of every shard; AssertionError for a name in two of them or one that the index does not place there."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, value in load_file(path).items():
            assert name not in found
            assert index["weight_map"][name] == path.name
            found[name] = value
    assert index["weight_map"].keys() == found.keys()
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in found.values())
    return found
