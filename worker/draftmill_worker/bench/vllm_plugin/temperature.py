"""Feature `temperature`: temperature, top-k and top-p reach every draft token of a request.

Model runner V1 expands them from requests to draft tokens. The CPU op converts its output to int64 first and fills
that copy, so that for every other dtype the caller keeps uninitialised memory.
"""

import torch

from draftmill_worker.bench.vllm_plugin.targets import expect, on_cpu

FEATURE = "temperature"


def apply() -> list[str]:
    on_cpu(FEATURE)
    expect(FEATURE, "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens", "ef896c2fe058ae70")
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    return ["expand_batch_to_tokens"]


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """`x` [requests] repeated for each request's tokens, [num_tokens], with one value replaced.

    `cu_num_tokens` [requests] are the running totals of tokens.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = x.masked_fill(x == replace_from, replace_to)
    return torch.repeat_interleave(values, counts, output_size=num_tokens)
