"""Whole checkpoints through the engine: the files are those that ModelOpt, torch and safetensors would make."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from draftmill.formats import Format
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.identity import changed, fingerprint
from draftmill_worker.quantize import moves, pool
from draftmill_worker.quantize.kernels.cpu import CpuOps
from draftmill_worker.quantize.kernels.torch_ops import TorchOps
from draftmill_worker.quantize.stream import quantize
from tests.fixtures.synthetic import Layout, build
from tests.unit.quantize.checkpoints import expected_files, plan_for, stored

FAMILIES = ("eagle3", "dflash", "dspark", "draft_model")
# Siblings lie in different shards, and are of different dtypes and sizes.
UNEVEN = Layout(shards=2, dtype="mixed", scale={"*v_proj*": 40.0, "*up_proj*": 0.01}, zero_rows=("*gate_proj*",))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows at a time, so that small tensors take many chunks."""
    monkeypatch.setattr(moves, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(CpuOps, "chunk_bytes", 3000)
    monkeypatch.setattr(TorchOps, "chunk_bytes", 7000)


def run(source: Path, out: Path, format: Format, *, device: str = "cpu", **options: object) -> dict[str, bytes]:
    plan = plan_for(source, format, **options)
    out.mkdir()
    quantize(source, plan, out, fsync=False, device=device)
    return {path.name: path.read_bytes() for path in out.iterdir()}


def assert_files(source: Path, made: dict[str, bytes], format: Format, **options: object) -> None:
    expected = expected_files(source, plan_for(source, format, **options))
    assert made == {file: save(tensors, metadata={"format": "pt"}) for file, tensors in expected.items()}


@pytest.mark.parametrize("scales", ["fused", "reference"])
@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_format(tmp_path: Path, family: str, format: Format, scales: str) -> None:
    source = build(tmp_path / "source", family, UNEVEN)
    before = fingerprint(source)
    assert_files(source, run(source, tmp_path / "out", format, scales=scales), format, scales=scales)
    assert changed(source, before) == []


@pytest.mark.parametrize("format", Format)
def test_the_torch_path_writes_the_same_files(tmp_path: Path, format: Format) -> None:
    source = build(tmp_path / "source", "eagle3", UNEVEN)
    ours = run(source, tmp_path / "numba", format)
    assert ours == run(source, tmp_path / "torch", format, device="torch")


@pytest.mark.parametrize("dtype", ["float16", "keep"])
@pytest.mark.parametrize("format", Format)
def test_other_dtypes(tmp_path: Path, format: Format, dtype: str) -> None:
    # ModelOpt compares the amax of siblings only within one dtype.
    layout = Layout(dtype="float32" if dtype == "keep" else "mixed")
    source = build(tmp_path / "source", "eagle3", layout)
    assert_files(source, run(source, tmp_path / "out", format, dtype=dtype), format, dtype=dtype)


def test_one_thread_many_threads_same_files(tmp_path: Path) -> None:
    source = build(tmp_path / "source", "dspark", UNEVEN)
    plan = plan_for(source, Format.NVFP4)
    made = []
    for threads in (1, 5):
        out = tmp_path / f"out{threads}"
        out.mkdir()
        quantize(source, plan, out, fsync=True, threads=threads)
        made.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert made[0] == made[1]


def test_little_may_be_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_PENDING", 1)
    source = build(tmp_path / "source", "eagle3", UNEVEN)
    assert_files(source, run(source, tmp_path / "out", Format.NVFP4), Format.NVFP4)


def test_tensors_at_odd_offsets(tmp_path: Path) -> None:
    """safetensors aligns nothing by itself: here a one-byte tensor comes first."""
    source = build(tmp_path / "source", "eagle3", Layout())
    tensors = stored(source, "model.safetensors")
    _write_unaligned(source / "model.safetensors", tensors)
    assert_files(source, run(source, tmp_path / "out", Format.FP8), Format.FP8)


def _write_unaligned(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    import json

    names = {torch.bfloat16: "BF16", torch.int64: "I64", torch.bool: "BOOL"}
    header, body = {}, b""
    for name in sorted(tensors, key=lambda name: tensors[name].element_size()):
        raw = tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": names[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    text = json.dumps(header).encode()
    # An odd length, so that every tensor of two bytes or more is misaligned.
    text += b" " * (1 - len(text) % 2)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def test_progress_counts_every_source_byte_once(tmp_path: Path) -> None:
    source = build(tmp_path / "source", "dflash", UNEVEN)
    plan = plan_for(source, Format.FP8)
    seen: list[tuple[int, int]] = []
    (tmp_path / "out").mkdir()
    quantize(source, plan, tmp_path / "out", progress=lambda done, total: seen.append((done, total)), fsync=False)
    assert seen == sorted(seen)
    assert seen[-1] == (plan.source_bytes, plan.source_bytes)


def test_findings_are_reported(tmp_path: Path) -> None:
    source = build(tmp_path / "source", "eagle3", UNEVEN)
    plan = plan_for(source, Format.NVFP4)
    (tmp_path / "out").mkdir()
    result = quantize(source, plan, tmp_path / "out", fsync=False)
    quantized = {tensor.name: tensor for tensor in plan.tensors if tensor.fate == "quantized"}
    assert result.tensors.keys() == quantized.keys()
    [gate] = [name for name in quantized if "gate_proj" in name]
    assert result.tensors[gate].zeros == 2 * quantized[gate].shape[1] // 16
    [v] = [name for name in quantized if "v_proj" in name]
    weights = [stored(source, t.file)[t.name] for t in quantized.values() if t.group == quantized[v].group]
    assert result.tensors[v].amax == max(float(w.bfloat16().abs().max()) for w in weights)
    assert sum(result.files.values()) == sum(len(tensor.outputs) for tensor in plan.tensors)


@pytest.mark.parametrize("format", Format)
def test_every_weight_that_is_not_finite_is_named(tmp_path: Path, format: Format) -> None:
    source = build(tmp_path / "source", "eagle3", Layout(shards=2, poison=("*o_proj*", "*k_proj*")))
    problem = refused(source, tmp_path / "out", format)
    assert problem.slug == "non-finite-weights"
    assert {offender.where.split(".")[-2] for offender in problem.offenders} == {"o_proj", "k_proj"}
    assert all("1 NaN" in offender.message for offender in problem.offenders)


def test_overflow_in_a_cast_is_told_from_what_was_there(tmp_path: Path) -> None:
    source = build(tmp_path / "source", "eagle3", Layout(dtype="float32"))
    tensors = stored(source, "model.safetensors")
    weight = next(name for name in tensors if "o_proj" in name)
    tensors["norm.weight"][:3] = torch.tensor([1e6, float("inf"), -2e5])
    tensors[weight][0, 0] = 7e4
    save_file(tensors, source / "model.safetensors")
    problem = refused(source, tmp_path / "out", Format.FP8, dtype="float16")
    messages = {offender.where: offender.message for offender in problem.offenders}
    assert messages.keys() == {"norm.weight", weight}
    assert messages["norm.weight"].endswith("1 Inf, 2 too large for float16")
    assert messages[weight].endswith(": 1 too large for float16")
    # bfloat16 has float32's range: only the Inf is left.
    problem = refused(source, tmp_path / "out", Format.FP8)
    assert [offender.where for offender in problem.offenders] == ["norm.weight"]


@pytest.mark.parametrize("format", [Format.NVFP4, Format.W4A16_NVFP4])
def test_every_all_zero_weight_is_named(tmp_path: Path, format: Format) -> None:
    source = build(tmp_path / "source", "eagle3", Layout(zero=("*o_proj*", "*down_proj*", "*k_proj*")))
    problem = refused(source, tmp_path / "out", format)
    assert problem.slug == "all-zero-weight"
    # k_proj shares the scale of its siblings, which are not zero.
    assert {offender.where.split(".")[-2] for offender in problem.offenders} == {"o_proj", "down_proj"}
    assert "exclude" in problem.detail


@pytest.mark.parametrize("format", [Format.FP8, Format.FP8_PC_PT])
def test_an_all_zero_weight_can_be_fp8(tmp_path: Path, format: Format) -> None:
    source = build(tmp_path / "source", "eagle3", Layout(zero=("*o_proj*",)))
    assert_files(source, run(source, tmp_path / "out", format), format)


def refused(source: Path, out: Path, format: Format, **options: object):  # type: ignore[no-untyped-def]
    """The problem; `out` is left as it was."""
    plan = plan_for(source, format, **options)
    out.mkdir(exist_ok=True)
    (out / "other").write_text("stays")
    with pytest.raises(ProblemError) as caught:
        quantize(source, plan, out, fsync=False)
    assert [path.name for path in out.iterdir()] == ["other"]
    return caught.value.problem


def test_a_source_that_is_not_the_plans_is_refused(tmp_path: Path) -> None:
    source = build(tmp_path / "source", "eagle3", Layout())
    plan = plan_for(source, Format.FP8)
    tensors = stored(source, "model.safetensors")
    tensors["norm.weight"] = tensors["norm.weight"].float()
    tensors["stale.weight"] = tensors.pop("fc.weight")
    save_file(tensors, source / "model.safetensors")
    (tmp_path / "out").mkdir()
    with pytest.raises(ProblemError) as caught:
        quantize(source, plan, tmp_path / "out")
    assert caught.value.problem.slug == "source-changed"
    wheres = {offender.where.removeprefix("model.safetensors: ") for offender in caught.value.problem.offenders}
    assert wheres == {"norm.weight", "fc.weight", "stale.weight"}


def test_a_full_disk_is_said_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    source = build(tmp_path / "source", "eagle3", Layout(shards=2))
    monkeypatch.setattr(os, "posix_fallocate", full)
    problem = refused(source, tmp_path / "out", Format.FP8)
    assert problem.slug == "disk-budget"


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    source = build(tmp_path / "source", "eagle3", Layout())
    (tmp_path / "model.safetensors").write_text("mine")
    with pytest.raises(FileExistsError):
        quantize(source, plan_for(source, Format.FP8), tmp_path)
    assert (tmp_path / "model.safetensors").read_text() == "mine"


def test_c30_a_hard_link_to_the_source_is_not_written_through(tmp_path: Path) -> None:
    source = build(tmp_path / "source", "eagle3", Layout())
    before = (source / "model.safetensors").read_bytes()
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors").hardlink_to(source / "model.safetensors")
    with pytest.raises(FileExistsError):
        quantize(source, plan_for(source, Format.FP8), out)
    assert (source / "model.safetensors").read_bytes() == before


def test_a_fault_in_a_thread_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = build(tmp_path / "source", "eagle3", UNEVEN)
    written = os.pwrite
    calls = iter(range(1000))

    def failing(fd: int, data: bytes, offset: int) -> int:
        if next(calls) > 20:
            raise OSError(errno.EIO, "Input/output error")
        return written(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", failing)
    (tmp_path / "out").mkdir()
    with pytest.raises(OSError, match="Input/output"):
        quantize(source, plan_for(source, Format.FP8), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = build(tmp_path / "source", "eagle3", UNEVEN)
    written = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: written(fd, memoryview(data)[:1000], offset))
    assert_files(source, run(source, tmp_path / "out", Format.NVFP4), Format.NVFP4)


def test_integers_above_bfloat16s_reach_survive(tmp_path: Path) -> None:
    source = build(tmp_path / "source", "eagle3", Layout())
    tensors = stored(source, "model.safetensors")
    tensors["d2t"][-1] = 257 - (len(tensors["d2t"]) - 1)
    save_file(tensors, source / "model.safetensors")
    run(source, tmp_path / "out", Format.FP8)
    out = stored(tmp_path / "out", "model.safetensors")
    assert torch.equal(out["d2t"], tensors["d2t"])
    assert out["d2t"].dtype is torch.int64
    assert np.array_equal(out["t2d"].numpy(), tensors["t2d"].numpy())


@pytest.mark.parametrize("format", Format)
def test_c17_predicting_layers_are_copied_byte_for_byte(tmp_path: Path, format: Format) -> None:
    block = {
        "mtp.layers.0.mlp.down_proj.weight": torch.randn(128, 256).bfloat16(),
        "mtp.norm.weight": torch.randn(128).bfloat16(),
    }
    source = build(tmp_path / "source", "draft_model", config={"num_nextn_predict_layers": 1}, extra=block)
    run(source, tmp_path / "out", format)
    out = stored(tmp_path / "out", "model.safetensors")
    assert all(torch.equal(out[name].view(torch.int16), weight.view(torch.int16)) for name, weight in block.items())
    assert not any(name.startswith("mtp.") for name in out.keys() - block.keys())


def test_c90_a_tied_pair_stored_twice_stays_two_tensors(tmp_path: Path) -> None:
    source = build(tmp_path / "source", "draft_model", own_head=True, config={"tie_word_embeddings": True})
    run(source, tmp_path / "out", Format.FP8)
    before, after = (stored(folder, "model.safetensors") for folder in (source, tmp_path / "out"))
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        assert torch.equal(after[name], before[name])
