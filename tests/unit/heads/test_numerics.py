"""Grids, GPTQ and divergences against compressed-tensors, ModelOpt and plain torch."""

import warnings
from collections.abc import Callable

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize as their_quantize
from compressed_tensors.quantization.utils import calculate_qparams
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftmill.problems import ProblemError
from draftmill_worker.heads.divergence import Divergence
from draftmill_worker.heads.gptq import gptq
from draftmill_worker.heads.grid import Grid, round_to_nearest
from draftmill_worker.heads.hessian import hessian, inverse_factor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from modelopt.torch.quantization.utils import calib_utils

GROUP = 128


def _weight(rows: int = 96, columns: int = 512, seed: int = 0) -> Tensor:
    return (torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.05).bfloat16()


def _hidden(rows: int = 600, columns: int = 512, seed: int = 1) -> Tensor:
    """Correlated and uneven, as hidden states are."""
    generator = torch.Generator().manual_seed(seed)
    inner = torch.randn(rows, 48, generator=generator) @ torch.randn(48, columns, generator=generator) / 7
    return (
        (inner + 0.3 * torch.randn(rows, columns, generator=generator)) * torch.linspace(0.2, 2, columns)
    ).bfloat16()


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_gives_compressed_tensors_codes_and_scales(bits: int) -> None:
    weight = _weight()
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=True, strategy="group", group_size=GROUP)
    grouped = weight.view(96, -1, GROUP)
    scales, zeros = calculate_qparams(grouped.amin(-1), grouped.amax(-1), args)
    codes = their_quantize(weight.float(), scales.float(), zeros.float(), args, dtype=torch.int8)
    ours = round_to_nearest(weight, Grid(bits))
    assert torch.equal(ours.scales, scales)
    assert torch.equal(ours.codes, codes)
    assert torch.equal(ours.dequantized(), codes.float() * scales.float().repeat_interleave(GROUP, 1))


def test_a_group_of_zeros_has_codes_of_zero_and_a_scale_that_divides() -> None:
    weight = _weight(4, 256)
    weight[1, :GROUP] = 0
    ours = round_to_nearest(weight, Grid(4))
    assert not ours.codes[1, :GROUP].any()
    assert (ours.scales.float() > 0).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 96])
def test_gptq_gives_modelopts_codes(bits: int, rows: int) -> None:
    weight, hidden, grid = _weight(rows), _hidden(), Grid(bits)
    theirs, _ = calib_utils.update_hessian(hidden.float(), torch.zeros(512, 512), 0)
    factor = calib_utils.compute_hessian_inverse(theirs, weight.float(), 0.01)
    assert torch.allclose(hessian(hidden.split(100)).float(), theirs, rtol=1e-4, atol=1e-5)
    ours = inverse_factor(theirs.double())
    assert torch.allclose(ours, factor, rtol=2e-2, atol=2e-2 * float(factor.abs().max()))
    moved = weight.float().clone()
    calib_utils.gptq_blockwise_update(moved, ours, GROUP, _static(grid))
    found = gptq(weight, ours, grid).dequantized()
    same = (found - moved).abs() < 1e-5
    # A code that lies between two may fall to either side in another order of summing.
    assert same.float().mean() > 0.999


def _static(grid: Grid) -> Callable[[Tensor], Tensor]:
    """ModelOpt asks for the whole matrix at each column: a group's scale is made when its first column comes."""
    asked = [0]
    scales: dict[int, Tensor] = {}

    def quantize(weight: Tensor) -> Tensor:
        group = asked[0] // GROUP
        part = weight[:, group * GROUP : (group + 1) * GROUP].T
        if asked[0] % GROUP == 0:
            scales[group] = grid.scales(part)
        asked[0] += 1
        out = weight.clone()
        out[:, group * GROUP : (group + 1) * GROUP] = (grid.codes(part, scales[group]) * scales[group]).T
        return out

    return quantize


def test_rows_do_not_depend_on_each_other() -> None:
    weight, factor = _weight(), inverse_factor(hessian([_hidden()]))
    whole = gptq(weight, factor, Grid(4))
    parts = [gptq(part, factor, Grid(4)) for part in weight.split(40)]
    assert (torch.cat([part.codes for part in parts]) == whole.codes).float().mean() > 0.999


def _kl(hidden: Tensor, head: Tensor, other: Tensor) -> float:
    left, right = (torch.log_softmax(hidden.double() @ weight.double().T, 1) for weight in (head, other))
    return float((left.exp() * (left - right)).sum(1).mean())


@given(parts=st.lists(st.integers(1, 40), min_size=1, max_size=6), scale=st.sampled_from([0.01, 1.0, 40.0]))
@settings(deadline=None, max_examples=25)
def test_divergence_in_parts_is_torchs_of_the_whole(parts: list[int], scale: float) -> None:
    rows = sum(parts)
    head, hidden = _weight(rows, 64).float() * scale, _hidden(20, 64).float()
    other = head + torch.randn(rows, 64, generator=torch.Generator().manual_seed(7)) * 0.01 * scale
    found = Divergence(hidden)
    for left, right in zip(head.split(parts), other.split(parts), strict=True):
        found.add(found.logits(left), found.logits(right))
    wanted = _kl(hidden, head, other)
    assert found.difference().kl == pytest.approx(wanted, rel=1e-3, abs=1e-5)
    best = (hidden @ head.T).argmax(1) == (hidden @ other.T).argmax(1)
    assert found.difference().top1 == pytest.approx(float(best.double().mean()))


def test_gptq_and_its_clip_diverge_less_than_rounding_on_held_out_rows() -> None:
    head, hidden = _weight(512), _hidden(2000)
    factor = inverse_factor(hessian([hidden[:1800]]))
    held = hidden[1800:]
    rounded = _kl(held, head, round_to_nearest(head, Grid(4)).dequantized())
    found = _kl(held, head, gptq(head, factor, Grid(4)).dequantized())
    clipped = _kl(held, head, gptq(head, factor, Grid(4, clip=True)).dequantized())
    assert found < 0.6 * rounded
    assert clipped < 0.6 * rounded


def test_dead_columns_are_named() -> None:
    hidden = _hidden()
    hidden[:, [3, 70]] = 0
    with pytest.raises(ProblemError) as caught:
        hessian([hidden])
    assert caught.value.problem.slug == "capture-dead-columns"
    assert [offender.where for offender in caught.value.problem.offenders] == ["column 3", "column 70"]


def test_no_rows_are_no_moments() -> None:
    with pytest.raises(ProblemError, match="no hidden rows"):
        hessian([])
