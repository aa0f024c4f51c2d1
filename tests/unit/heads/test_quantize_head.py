"""A head in integers is what compressed-tensors reads back, is judged as plain torch judges it, and is none at all when
anything about it or its capture is wrong."""

import shutil
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftmill.heads import Divergence, HeadOptions, HeadReport
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.heads import quantize as module
from draftmill_worker.heads import rows
from draftmill_worker.heads.quantize import check_gate, quantize_head
from draftmill_worker.heads.source import find_head
from tests.fixtures.heads import target
from tests.unit.heads import captured

GROUP = 128


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target.build(tmp_path_factory.mktemp("t") / "untied", exact=True, tied=False, shape=captured.SHAPE)


@pytest.fixture(scope="module")
def capture(untied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured.exact_rows(untied, tmp_path_factory.mktemp("c") / rows.FILE)


def _quantize(folder: Path, out: Path, capture: Path | None, **options: object) -> HeadReport:
    source = find_head(folder, open_checkpoint(folder))
    opened = None if capture is None else rows.open_rows(capture)
    return quantize_head(source, HeadOptions.model_validate(options), opened, out, lambda *_: None)


def _dequantized(out: Path, bits: int, name: str = "lm_head") -> Tensor:
    stored = load_file(out)
    shape = torch.Size(stored[f"{name}.weight_shape"].tolist())
    codes = unpack_from_int32(stored[f"{name}.weight_packed"], bits, shape)
    return codes.float() * stored[f"{name}.weight_scale"].float().repeat_interleave(GROUP, 1)


def _kl(hidden: Tensor, head: Tensor, other: Tensor) -> float:
    left, right = (torch.log_softmax(hidden.double() @ weight.double().T, 1) for weight in (head, other))
    return float((left.exp() * (left - right)).sum(1).mean())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("method", ["gptq", "gptq_mse"])
def test_gptq_is_judged_as_torch_judges_it(
    untied: Path, capture: Path, tmp_path: Path, bits: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftmill_worker.heads.tensors.CHUNK", 300 * 256)
    report = _quantize(untied, tmp_path / "h", capture, bits=bits, method=method)
    opened = rows.open_rows(capture)
    held = opened.hidden[opened.split()[1]].float()
    head = load_file(untied / "model.safetensors")["lm_head.weight"].float()
    assert report.gptq is not None
    assert report.rtn is not None
    assert report.gptq.kl == pytest.approx(_kl(held, head, _dequantized(tmp_path / "h", bits)), rel=1e-2, abs=1e-8)
    assert report.gptq.kl < 0.6 * report.rtn.kl
    assert report.gptq.weighted_error < report.rtn.weighted_error
    assert (report.calibration_rows, report.held_out_rows) == (1080, 120)


def test_rounding_needs_no_capture_and_says_nothing_of_quality(untied: Path, tmp_path: Path) -> None:
    report = _quantize(untied, tmp_path / "h", None, bits=8, method="rtn")
    assert (report.rtn, report.gptq) == (None, None)
    head = load_file(untied / "model.safetensors")["lm_head.weight"].float()
    assert (head - _dequantized(tmp_path / "h", 8)).abs().max() < head.abs().max() / 127


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    folder = target.build(tmp_path / "tied", shape=captured.SHAPE)
    report = _quantize(folder, tmp_path / "h", None, method="rtn")
    assert report.source == "model.safetensors: model.embed_tokens.weight"
    assert set(load_file(tmp_path / "h")) == {f"lm_head.weight_{part}" for part in ("packed", "scale", "shape")}


def _requantized(folder: Path, untied: Path, backups: tuple[str, ...]) -> Path:
    """The target after a tool packed its head in place, with the shard as it was under some names."""
    shutil.copytree(untied, folder)
    for suffix in backups:
        shutil.copy(folder / "model.safetensors", folder / f"model.safetensors{suffix}")
    stored = load_file(folder / "model.safetensors")
    rounded = module.round_to_nearest(stored.pop("lm_head.weight"), module.Grid(8))
    stored["lm_head.weight_packed"] = torch.from_numpy(module.pack(rounded.codes.numpy(), 8))
    save_file(stored, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("backups", [(".bak",), (".bak-orig",), (".bak", ".bak-orig")])
def test_a_requantized_head_starts_from_its_backup(
    untied: Path, capture: Path, tmp_path: Path, backups: tuple[str, ...]
) -> None:
    folder = _requantized(tmp_path / "r", untied, backups)
    report = _quantize(folder, tmp_path / "h", capture)
    direct = _quantize(untied, tmp_path / "d", capture)
    assert report.source == f"model.safetensors{backups[-1]}: lm_head.weight"
    assert report.gptq == direct.gptq
    assert (tmp_path / "h").read_bytes() == (tmp_path / "d").read_bytes()


def test_a_backup_that_was_requantized_itself_is_passed_over(untied: Path, tmp_path: Path) -> None:
    folder = _requantized(tmp_path / "r", untied, (".bak",))
    shutil.copy(folder / "model.safetensors", folder / "model.safetensors.bak-orig")
    assert find_head(folder, open_checkpoint(folder)).path.name == "model.safetensors.bak"


def test_without_a_backup_both_names_are_told(untied: Path, tmp_path: Path) -> None:
    folder = _requantized(tmp_path / "r", untied, ())
    with pytest.raises(ProblemError) as caught:
        find_head(folder, open_checkpoint(folder))
    problem = caught.value.problem
    assert problem.slug == "head-source-missing"
    assert [o.where for o in problem.offenders] == ["model.safetensors.bak", "model.safetensors.bak-orig"]
    assert "model.safetensors.bak nor model.safetensors.bak-orig" in problem.detail


def _refused(folder: Path, tmp_path: Path, capture: Path | None, **options: object) -> str:
    with pytest.raises(ProblemError) as caught:
        _quantize(folder, tmp_path / "h", capture, **options)
    assert not (tmp_path / "h").exists()
    return caught.value.problem.slug


def _capture(untied: Path, path: Path, change: str) -> Path:
    ids = torch.randint(0, 1024, (20, 60), generator=torch.Generator().manual_seed(3))
    hidden = target.hidden_states(untied, ids.flatten())
    if change == "dead columns":
        hidden[:, 5:9] = 0
    elif change == "half zero":
        hidden[600:] = 0
    elif change == "other model":
        hidden = hidden[:, :128]
    elif change == "nothing seen":
        hidden = hidden * 1e-6
    return captured.write(path, ids.tolist(), hidden)


@pytest.mark.parametrize(
    ("change", "slug"),
    [
        ("dead columns", "capture-dead-columns"),
        ("half zero", "capture-invalid"),
        ("other model", "capture-invalid"),
        ("nothing seen", "head-gate-failed"),
    ],
)
@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_a_bad_capture_leaves_no_head(untied: Path, tmp_path: Path, change: str, slug: str, method: str) -> None:
    assert _refused(untied, tmp_path, _capture(untied, tmp_path / "c", change), method=method) == slug


def test_gptq_without_a_capture_is_refused(untied: Path, tmp_path: Path) -> None:
    assert _refused(untied, tmp_path, None, method="gptq") == "head-refused"


@pytest.mark.parametrize(("value", "slug"), [(float("nan"), "non-finite-weights"), (0.0, "all-zero-weight")])
def test_a_head_that_cannot_be_rounded_is_refused(untied: Path, tmp_path: Path, value: float, slug: str) -> None:
    stored = load_file(untied / "model.safetensors")
    stored["lm_head.weight"][:] = value
    folder = tmp_path / "f"
    shutil.copytree(untied, folder)
    save_file(stored, folder / "model.safetensors")
    assert _refused(folder, tmp_path, None, method="rtn") == slug


def test_columns_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    shape = target.Shape(vocab=64, hidden=192, intermediate=64, heads=1, kv_heads=1, head_dim=64, layers=1)
    assert _refused(target.build(tmp_path / "t", shape=shape), tmp_path, None, method="rtn") == "head-refused"


def _report(rtn: float, gptq: float | None) -> HeadReport:
    def found(kl: float) -> Divergence:
        return Divergence(kl=kl, top1=1.0, weighted_error=0.1)

    return HeadReport(
        bits=4, method="gptq", source="", rows=1, columns=1, rtn=found(rtn), gptq=None if gptq is None else found(gptq)
    )


def test_the_gate_wants_gptq_below_rounding_and_rounding_above_its_floor() -> None:
    check_gate(_report(1e-2, 9e-3))
    check_gate(_report(1e-2, None))
    for rtn, gptq in ((1e-2, 1e-2), (1e-2, 2e-2), (1e-2, float("nan")), (1e-7, 1e-8), (float("nan"), 1e-3)):
        with pytest.raises(ProblemError) as caught:
            check_gate(_report(rtn, gptq))
        assert caught.value.problem.slug == "head-gate-failed"
