"""Rows that an engine drafted, judged by the drafter in plain fp32 torch at the same place of the same text."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.e2e.vllm_plugin.boot import Result, Row
from tests.fixtures.nets.dflash import DFlash, DSpark
from tests.fixtures.nets.llama import Llama
from tests.fixtures.replay import Seen, proposer


@dataclass(frozen=True)
class Verdict:
    same: bool
    """The replay drafts the same tokens."""
    margin: float
    """The most that a drafted token's logit lies under the highest, each step given the engine's tokens before it."""


def standing(prompts: list[list[int]], result: Result) -> list[tuple[list[int], Row]]:
    """Each row with its request's prompt and output. Rows drafted beyond a request's last token stand nowhere."""
    texts = [[*prompt, *output] for prompt, output in zip(prompts, result.outputs, strict=True)]
    return [(texts[row.request], row) for row in result.rows if row.position < len(texts[row.request])]


@torch.inference_mode()
def judge(target: Llama, drafter: DFlash, text: list[int], row: Row) -> Verdict:
    """`text` is prompt and output of the row's request."""
    ids = text[: row.position + 1]
    assert ids[-1] == row.anchor, "the row does not stand where it says"
    seen = Seen(torch.tensor([ids]), target.states(torch.tensor([ids[:-1]])), target)
    replayed = proposer(drafter)(seen, len(row.drafted))
    chosen = torch.tensor(row.drafted)
    logits = _logits(drafter, seen, chosen)
    margin = (logits.max(-1).values - logits.gather(1, chosen[:, None])[:, 0]).max()
    return Verdict(replayed == row.drafted, float(margin))


def _logits(drafter: DFlash, seen: Seen, drafted: Tensor) -> Tensor:
    """[K, V], the same arithmetic as replay.py's, with the drafted tokens as what came before."""
    target, ids = seen.target, seen.ids
    start = torch.tensor([ids.shape[1] - 1])
    states = drafter.block(target.model.embed_tokens, drafter.context(seen.states), ids[:, -1:], start)[0, 0]
    head = target.model.embed_tokens if target.lm_head is None else target.lm_head
    logits: Tensor = states @ head.weight.t()
    if isinstance(drafter, DSpark):
        bias: Tensor = drafter.markov_head(torch.cat((ids[0, -1:], drafted[:-1])))
        return logits + bias
    return logits[1:]
