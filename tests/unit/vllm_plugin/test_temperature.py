"""Sampling parameters of requests, expanded to their draft tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftmill_worker.bench.vllm_plugin.temperature import expand_batch_to_tokens

COUNTS = st.lists(st.integers(0, 5), min_size=1, max_size=6)


@given(counts=COUNTS, dtype=st.sampled_from([torch.float32, torch.int32, torch.int64]), data=st.data())
def test_each_value_comes_as_often_as_its_request_has_tokens(
    counts: list[int], dtype: torch.dtype, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.integers(0, 9), min_size=len(counts), max_size=len(counts)))
    totals = torch.tensor(counts).cumsum(0).int()
    found = expand_batch_to_tokens(torch.tensor(values, dtype=dtype), totals, sum(counts), replace_from=0, replace_to=1)
    assert found.dtype == dtype
    assert found.tolist() == [value or 1 for value, count in zip(values, counts, strict=True) for _ in range(count)]


@pytest.mark.vllm
@pytest.mark.usefixtures("applied")
def test_temperatures_reach_the_logits() -> None:
    """vLLM's own function, whose expansion of floats is mended, divides each row by its request's temperature."""
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.metadata import SamplingMetadata

    assert rejection_sampler.expand_batch_to_tokens is expand_batch_to_tokens
    metadata = SamplingMetadata.__new__(SamplingMetadata)
    metadata.all_greedy, metadata.top_k, metadata.top_p = False, None, None
    metadata.temperature = torch.tensor([0.5, 2.0])
    logits = torch.randn(5, 11)
    scaled = rejection_sampler.apply_sampling_constraints(logits.clone(), torch.tensor([2, 5]), metadata)
    torch.testing.assert_close(scaled, logits / torch.tensor([0.5, 0.5, 2.0, 2.0, 2.0])[:, None])


@pytest.mark.vllm
@pytest.mark.usefixtures("applied")
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_drafts_are_accepted_as_often_as_the_target_would_draw_them(temperature: float) -> None:
    """Two draft tokens for each of many requests, every other one at another temperature, through vLLM's sampler."""
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.metadata import SamplingMetadata

    torch.manual_seed(20261130)
    requests, logits = 8000, torch.randn(2, 7)
    metadata = SamplingMetadata.__new__(SamplingMetadata)
    metadata.all_greedy, metadata.all_random, metadata.generators = False, True, {}
    metadata.top_k = metadata.top_p = None
    metadata.temperature = torch.tensor([temperature, 1.0]).repeat(requests // 2)
    totals = torch.arange(2, 2 * requests + 1, 2, dtype=torch.int32)
    drafted = torch.tensor([3, 5], dtype=torch.int32)
    out = rejection_sampler.rejection_sample(
        drafted.repeat(requests),
        [2] * requests,
        2,
        totals,
        None,
        rejection_sampler.apply_sampling_constraints(logits.repeat(requests, 1), totals, metadata),
        torch.full((requests, 1), 6, dtype=torch.int32),
        metadata,
    )[::2]
    probabilities = (logits / temperature).softmax(-1)
    first = torch.bincount(out[:, 0], minlength=7) / len(out)
    torch.testing.assert_close(first, probabilities[0], atol=0.03, rtol=0)
    kept = out[out[:, 0] == drafted[0]]
    second = torch.bincount(kept[:, 1], minlength=7) / len(kept)
    torch.testing.assert_close(second, probabilities[1], atol=0.06, rtol=0)
