import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftmill.problems import Problem, ProblemError
from draftmill_worker.checkpoint.checkpoint import INDEX, from_headers, open_checkpoint
from draftmill_worker.checkpoint.headers import read_header
from tests.unit.checkpoint.layouts import dflash, draft_model, eagle3


def _problem(folder: Path) -> Problem:
    with pytest.raises(ProblemError) as caught:
        open_checkpoint(folder)
    return caught.value.problem


def _weights(folder: Path, name: str, *tensors: str) -> None:
    save_file({tensor: torch.zeros(2, 2) for tensor in tensors}, folder / name)


def _index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_one_file(tmp_path: Path) -> None:
    layout = eagle3()
    checkpoint = open_checkpoint(layout.write(tmp_path))
    assert checkpoint.config == layout.config
    assert checkpoint.files == ("model.safetensors",)
    assert checkpoint.index is None
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in checkpoint.tensors.items()} == layout.tensors
    starts = [tensor.start for tensor in checkpoint.tensors.values()]
    assert starts == sorted(starts)


def test_shards_with_an_index(tmp_path: Path) -> None:
    layout = dflash()
    checkpoint = open_checkpoint(layout.write(tmp_path, shards=3))
    assert len(checkpoint.files) == 3
    assert checkpoint.index is not None
    assert {name: tensor.file for name, tensor in checkpoint.tensors.items()} == checkpoint.index
    order = [(tensor.file, tensor.start) for tensor in checkpoint.tensors.values()]
    assert order == sorted(order)


def test_bytes_are_those_of_tensors_without_headers(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(draft_model().write(tmp_path))
    size = (tmp_path / "model.safetensors").stat().st_size
    header = int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little")
    assert checkpoint.nbytes == size - 8 - header


def test_c4_index_names_an_absent_shard(tmp_path: Path) -> None:
    dflash().write(tmp_path, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    problem = _problem(tmp_path)
    assert problem.slug == "incomplete-checkpoint"
    assert [offender.where for offender in problem.offenders] == ["model-00002-of-00002.safetensors"]


def test_c4_index_names_tensors_that_no_file_holds(folder: Path) -> None:
    _weights(folder, "a.safetensors", "x")
    _index(folder, {"x": "a.safetensors", "y": "a.safetensors", "z": "a.safetensors"})
    problem = _problem(folder)
    assert problem.slug == "incomplete-checkpoint"
    assert [offender.where for offender in problem.offenders] == ["y", "z"]


def test_c12_stale_tensor_in_another_listed_shard(folder: Path) -> None:
    _weights(folder, "a.safetensors", "x", "t")
    _weights(folder, "b.safetensors", "t")
    _index(folder, {"x": "a.safetensors", "t": "b.safetensors"})
    problem = _problem(folder)
    assert problem.slug == "duplicate-tensor"
    assert problem.offenders[0].where == "t"
    assert "a.safetensors, b.safetensors" in problem.offenders[0].message


def test_c12_listed_shard_holds_a_tensor_the_index_does_not_name(folder: Path) -> None:
    _weights(folder, "a.safetensors", "x", "extra")
    _index(folder, {"x": "a.safetensors"})
    problem = _problem(folder)
    assert (problem.slug, problem.offenders[0].where) == ("unlisted-weights", "extra")


def test_c39_unlisted_file_beside_listed_ones(folder: Path) -> None:
    _weights(folder, "a.safetensors", "x")
    _weights(folder, "old.safetensors", "y")
    _index(folder, {"x": "a.safetensors"})
    problem = _problem(folder)
    assert (problem.slug, problem.offenders[0].where) == ("unlisted-weights", "old.safetensors")


def test_duplicates_are_found_without_an_index_too(folder: Path) -> None:
    _weights(folder, "a.safetensors", "x", "y")
    _weights(folder, "b.safetensors", "y")
    assert _problem(folder).slug == "duplicate-tensor"


def test_all_faults_come_in_one_answer(folder: Path) -> None:
    _weights(folder, "a.safetensors", "x", "t", "extra")
    _weights(folder, "b.safetensors", "t")
    _weights(folder, "c.safetensors", "u")
    _index(folder, {"x": "a.safetensors", "t": "b.safetensors", "gone": "b.safetensors", "lost": "d.safetensors"})
    wheres = {offender.where for offender in _problem(folder).offenders}
    assert wheres == {"gone", "d.safetensors", "c.safetensors", "extra", "t"}


def test_c117_pickle_only(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    problem = _problem(folder)
    assert problem.slug == "pickle-refused"
    assert [offender.where for offender in problem.offenders] == ["pytorch_model.bin"]


def test_pickle_beside_safetensors_is_left_alone(folder: Path) -> None:
    (folder / "optimizer.pt").write_bytes(b"\x80\x02")
    _weights(folder, "model.safetensors", "x")
    assert open_checkpoint(folder).files == ("model.safetensors",)


def test_no_weights(folder: Path) -> None:
    assert _problem(folder).slug == "no-weights"
    save_file({}, folder / "model.safetensors")
    assert _problem(folder).slug == "no-weights"


def test_no_config(tmp_path: Path) -> None:
    _weights(tmp_path, "model.safetensors", "x")
    assert _problem(tmp_path).slug == "malformed-config"


@pytest.mark.parametrize(
    "file", ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors", ".hidden"]
)
def test_index_may_not_leave_the_folder(folder: Path, file: str) -> None:
    _weights(folder, "a.safetensors", "x")
    _index(folder, {"x": file})
    assert _problem(folder).slug == "unsafe-path"


@pytest.mark.parametrize("weight_map", [None, [], {"x": 1}, "a"])
def test_index_of_the_wrong_type(folder: Path, weight_map: object) -> None:
    _weights(folder, "a.safetensors", "x")
    _index(folder, weight_map)
    assert _problem(folder).slug == "malformed-config"


def test_headers_alone_give_the_same_checkpoint(tmp_path: Path) -> None:
    dflash().write(tmp_path, shards=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    headers = {name: read_header(tmp_path / name) for name in names if name.endswith(".safetensors")}
    config, index = (tmp_path / "config.json").read_bytes(), (tmp_path / INDEX).read_bytes()
    assert from_headers(config, index, headers, names) == open_checkpoint(tmp_path)
