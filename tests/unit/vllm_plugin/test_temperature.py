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
