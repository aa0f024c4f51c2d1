"""NVFP4 block scales by least weight error: never worse than plain max, and as good as trying every scale."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftmill.formats import SCALE_SEARCH_FORMATS, Format
from draftmill.jobs import QuantizeOptions
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.quantize.formats import scheme_for
from draftmill_worker.quantize.kernels import row_ops
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.quantize.stream import QuantizeResult, quantize
from draftmill_worker.variants import variant_digest
from tests.fixtures.synthetic import Layout, build
from tests.unit.quantize.checkpoints import stored
from tests.unit.quantize.modelopt_reference import modelopt_tensors
from tests.unit.quantize.weights import CAST, as_rows, packed, same_bytes, weights

DEVICES = ("cpu", "torch")
CODES = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn)
"""Every E4M3 scale."""
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
Stored = dict[str, torch.Tensor]


def read_back(weight: torch.Tensor, stored: Stored) -> torch.Tensor:
    """fp32, as ModelOpt itself dequantizes."""
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    tensor = NVFP4QTensor(weight.shape, torch.float32, stored["weight"])
    back: torch.Tensor = tensor.dequantize(
        torch.float32, scale=stored["weight_scale"], double_scale=stored["weight_scale_2"], block_sizes={-1: 16}
    )
    return back


def block_errors(weight: torch.Tensor, stored: Stored) -> torch.Tensor:
    """float64 [rows, blocks]: squared errors."""
    errors = read_back(weight, stored).double() - weight.double()
    return errors.square().reshape(weight.shape[0], -1, 16).sum(dim=2)


def every_scale(weight: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """float64 [126, rows, blocks]: the errors with each E4M3 scale in every block, packed by ModelOpt."""
    from modelopt.torch.export.quant_utils import to_quantized_weight

    rows, columns = weight.shape
    many = weight.repeat(len(CODES), 1)
    scales = CODES.view(torch.uint8).repeat_interleave(rows)[:, None].repeat(1, columns // 16).view(torch.float8_e4m3fn)
    codes = to_quantized_weight(many, scales, "nvfp4", second, 16)
    errors = block_errors(many, {"weight": codes, "weight_scale": scales, "weight_scale_2": second})
    return errors.reshape(len(CODES), rows, -1)


@pytest.mark.parametrize(("format", "cast"), [(format, cast) for format in SCALE_SEARCH_FORMATS for cast in CAST])
@given(data=st.data())
@settings(relaxed, max_examples=12)
def test_no_block_of_any_weight_is_worse_than_with_plain_max(format: Format, cast: str, data: st.DataObject) -> None:
    sources = data.draw(st.lists(weights(CAST[cast]), min_size=3, max_size=6))
    for weight, plain in zip(sources, modelopt_tensors(sources, format, fuse=False), strict=True):
        if plain["weight_scale_2"] == 0:
            continue  # NaN block scales; see test_edges
        searched = [packed(weight, format, cast, row_ops(device), search=True) for device in DEVICES]
        assert all(same_bytes(searched[0][name], searched[1][name]) for name in plain)
        assert same_bytes(searched[0]["weight_scale_2"], plain["weight_scale_2"])
        worse = block_errors(weight, searched[0]) > block_errors(weight, plain) * (1 + 1e-12)
        assert not worse.any(), weight


@pytest.mark.parametrize("fused", [1.0, 3.0])
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["bell", "heavy", "quarters", "sparse"]))
@settings(relaxed, max_examples=6)
def test_no_scale_at_all_gives_less_error(seed: int, kind: str, fused: float) -> None:
    """As ModelOpt's sweep over 126 scales. `fused`: the amax is that of a larger sibling."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(8, 64, generator=generator)
    if kind == "heavy":
        weight = weight**3
    elif kind == "quarters":
        weight = (weight * 4).round() / 4
    elif kind == "sparse":
        weight *= torch.rand(weight.shape, generator=generator) < 0.2
    weight[0, 0] = 4.0
    weight = weight.bfloat16()
    amax = float(weight.float().abs().max()) * fused
    ours = packed(weight, Format.NVFP4, "BF16", row_ops("cpu"), amax, search=True)
    found = block_errors(weight, ours)
    least = every_scale(weight, ours["weight_scale_2"]).amin(dim=0)
    plain = packed(weight, Format.NVFP4, "BF16", row_ops("cpu"), amax)["weight_scale"].view(torch.uint8)
    # Below 2^-6 an E4M3 scale need not have a half.
    normal = plain >= 8
    assert normal.any()
    assert (found <= least * (1 + 1e-6))[normal].all()
    # A rounded quotient may tie where the exact one does not: the last bits are not the error's.
    assert (found >= least * (1 - 1e-6)).all()


def test_every_scale_that_is_tried_is_needed() -> None:
    """Of normal weights: from two codes below plain max's to seven above it, as ModelOpt's codes of all 126 say."""
    weight = (torch.randn(96, 1024, generator=torch.Generator().manual_seed(0)) / 50).bfloat16()
    plain, ours = (packed(weight, Format.NVFP4, "BF16", row_ops("cpu"), search=on) for on in (False, True))
    moved = ours["weight_scale"].view(torch.uint8).int() - plain["weight_scale"].view(torch.uint8).int()
    assert set(range(-2, 8)) <= set(moved.unique().tolist())
    least = every_scale(weight, ours["weight_scale_2"]).amin(dim=0)
    assert (block_errors(weight, ours) <= least * (1 + 1e-6)).all()


def test_four_can_be_better_than_six() -> None:
    """The observation of arXiv:2512.02010: three quarters of the largest magnitude are a value below 4, not below 6."""
    weight = torch.full((2, 32), 30.0).bfloat16()
    weight[:, 1::2] = 40.0
    weight[1, 0] = 2688.0
    plain, searched = (packed(weight, Format.NVFP4, "BF16", row_ops("cpu"), search=on) for on in (False, True))
    assert plain["weight_scale_2"] == 1.0
    before, after = block_errors(weight, plain), block_errors(weight, searched)
    assert float(before[0, 0]) > 0
    assert float(after[0, 0]) == 0  # scale 10: 3 and 4
    assert float(searched["weight_scale"][0, 0].float()) == 10.0


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_reported_is_what_is_stored(device: str) -> None:
    weight = (torch.randn(64, 256, generator=torch.Generator().manual_seed(3)) / 30).bfloat16()
    scheme, ops, rows = scheme_for(Format.NVFP4, scale_search=True), row_ops(device), as_rows(weight, "BF16")
    errors = scheme.pack(ops, rows, scheme.scalars(ops.amax(rows), np.float32(0))).errors
    assert errors is not None
    for reported, search in ((errors.found, True), (errors.plain, False)):
        stored_ = packed(weight, Format.NVFP4, "BF16", ops, search=search)
        assert reported == pytest.approx(float(block_errors(weight, stored_).sum()), rel=1e-12)
    assert errors.weight == pytest.approx(float(weight.double().square().sum()), rel=1e-12)
    assert errors.found < 0.85 * errors.plain


@given(data=st.data())
@settings(relaxed, max_examples=15)
def test_every_element_keeps_the_bound(data: st.DataObject) -> None:
    weight = data.draw(weights(torch.bfloat16)).clamp(-3e38, 3e38)
    ours = packed(weight, Format.NVFP4, "BF16", row_ops("cpu"), search=True)
    if ours["weight_scale_2"] == 0:
        return
    bound = scheme_for(Format.NVFP4, scale_search=True).error_bound(weight.float())
    assert ((read_back(weight, ours) - weight.float()).abs() <= bound).all()


def made(source: Path, out: Path, format: Format, options: QuantizeOptions, device: str = "cpu") -> QuantizeResult:
    checkpoint = open_checkpoint(source)
    plan = make_plan(checkpoint, detect(checkpoint), format, options)
    out.mkdir()
    return quantize(source, plan, out, fsync=False, device=device)


def test_a_drafter_in_chunks_and_on_either_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte for another what a single weight gives, with the amax of its fused set."""
    from draftmill_worker.quantize.kernels.cpu import CpuOps

    source = build(tmp_path / "drafter", "eagle3", Layout())
    options = QuantizeOptions(nvfp4_scale_search=True)
    monkeypatch.setattr(CpuOps, "chunk_bytes", 1 << 12)
    results = [made(source, tmp_path / device, Format.W4A16_NVFP4, options, device) for device in DEVICES]
    plain = made(source, tmp_path / "plain", Format.W4A16_NVFP4, QuantizeOptions())
    assert plain.scale_search is None
    assert (tmp_path / "cpu/model.safetensors").read_bytes() == (tmp_path / "torch/model.safetensors").read_bytes()
    before, after, max_ = (
        stored(folder, "model.safetensors") for folder in (source, tmp_path / "cpu", tmp_path / "plain")
    )
    relative: dict[str, list[float]] = {"cpu": [], "plain": []}
    for name in results[0].tensors:
        stem, weight = name.removesuffix("weight"), before[name].bfloat16()
        assert same_bytes(after[f"{stem}weight_scale_2"], max_[f"{stem}weight_scale_2"])
        for folder, tensors in (("cpu", after), ("plain", max_)):
            parts = {suffix: tensors[stem + suffix] for suffix in ("weight", "weight_scale", "weight_scale_2")}
            square = float(block_errors(weight, parts).sum())
            relative[folder].append(square / float(weight.double().square().sum()))
    for result in results:
        assert result.scale_search is not None
        assert result.scale_search.relative_mse == pytest.approx(np.mean(relative["cpu"]), rel=1e-9)
        assert result.scale_search.plain_relative_mse == pytest.approx(np.mean(relative["plain"]), rel=1e-9)
        assert result.scale_search.relative_mse < result.scale_search.plain_relative_mse


@pytest.mark.parametrize(
    ("format", "scales", "count"),
    [(format, "fused", 1) for format in Format if format not in SCALE_SEARCH_FORMATS]
    + [(Format.NVFP4, "reference", 1), (Format.FP8, "reference", 2)],
)
def test_it_is_refused_by_name_elsewhere(tmp_path: Path, format: Format, scales: str, count: int) -> None:
    source = build(tmp_path / "drafter", "eagle3", Layout())
    options = QuantizeOptions.model_validate({"nvfp4_scale_search": True, "scales": scales})
    with pytest.raises(ProblemError) as caught:
        made(source, tmp_path / "out", format, options)
    assert caught.value.problem.slug == "scale-search-refused"
    assert len(caught.value.problem.offenders) == count


def test_it_is_part_of_a_variants_address() -> None:
    plain, searched = (
        variant_digest("a" * 64, Format.NVFP4, QuantizeOptions(nvfp4_scale_search=on), "build") for on in (False, True)
    )
    assert plain != searched
