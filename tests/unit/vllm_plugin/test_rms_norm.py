"""rms_norm with a weight per layer, and the fault that is mended."""

import pytest
import torch

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("applied")]

LAYERS, TOKENS, HEADS, SIZE, EPS = 3, 7, 2, 64, 1e-6


def _plain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


@pytest.fixture
def keys() -> torch.Tensor:
    return torch.randn(LAYERS, TOKENS, HEADS, SIZE)


@pytest.fixture
def weights() -> torch.Tensor:
    return torch.rand(LAYERS, SIZE) + torch.arange(LAYERS)[:, None]


def test_every_layer_is_normed_with_its_own_weight(keys: torch.Tensor, weights: torch.Tensor) -> None:
    from vllm import _custom_ops

    out = torch.empty_like(keys)
    _custom_ops.rms_norm(out, keys, weights, EPS)
    torch.testing.assert_close(out, _plain(keys, weights[:, None, None]))


@pytest.mark.parametrize("weight", [None, torch.rand(SIZE)])
def test_other_weights_are_as_before(keys: torch.Tensor, weight: torch.Tensor | None) -> None:
    from vllm import _custom_ops

    out, expected = torch.empty_like(keys), torch.empty_like(keys)
    _custom_ops.rms_norm(out, keys, weight, EPS)
    torch.ops._C.rms_norm(expected, keys, weight, EPS)
    assert torch.equal(out, expected)


def test_the_op_still_reads_one_row(keys: torch.Tensor, weights: torch.Tensor) -> None:
    """When this fails the fault is gone from vLLM, and the feature with it."""
    out = torch.empty_like(keys)
    torch.ops._C.rms_norm(out, keys, weights, EPS)
    torch.testing.assert_close(out, _plain(keys, weights[0]))
