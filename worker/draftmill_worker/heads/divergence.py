"""How far a quantized head's predictions are from the head's own, over held-out hidden rows.

One pass over the vocabulary, some rows of the head at a time: the sums of each softmax are kept relative to the largest
logit so far, so that no vector over the whole vocabulary is ever held for all rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Difference:
    kl: float
    """Mean over rows of KL(head || quantized), in nats."""
    top1: float
    """Share of rows whose most likely token is the same."""


class Divergence:
    """KL(p || q) = sum_i p_i (l_i - m_i) - log Z_p + log Z_q for logits l of the head and m of the quantized one."""

    def __init__(self, rows: Tensor) -> None:
        """`rows` floating [n, columns]."""
        self._rows = rows.float()
        start = torch.full((len(rows),), float("-inf"), dtype=torch.float64)
        zero = torch.zeros(len(rows), dtype=torch.float64)
        self._head_top, self._head_sum, self._apart = start.clone(), zero.clone(), zero.clone()
        self._other_top, self._other_sum = start.clone(), zero.clone()
        self._head_best = torch.zeros(len(rows), dtype=torch.int64)
        self._other_best = self._head_best.clone()
        self._seen = 0

    def logits(self, weight: Tensor) -> Tensor:
        """fp32 [n, part] for `weight` fp32 [part, columns]."""
        return self._rows @ weight.T

    def add(self, head: Tensor, other: Tensor) -> None:
        """The logits [n, part] of the vocabulary's next part under both heads."""
        top, place = head.max(1)
        found = top.double() > self._head_top
        self._head_best = torch.where(found, place + self._seen, self._head_best)
        raised = torch.maximum(self._head_top, top.double())
        kept = torch.exp(self._head_top - raised)
        terms = torch.exp(head - raised.float().unsqueeze(1))
        self._head_sum = self._head_sum * kept + terms.sum(1, dtype=torch.float64)
        self._apart = self._apart * kept + (terms * (head - other)).sum(1, dtype=torch.float64)
        self._head_top = raised
        self._add_other(other)
        self._seen += head.shape[1]

    def _add_other(self, other: Tensor) -> None:
        top, place = other.max(1)
        self._other_best = torch.where(top.double() > self._other_top, place + self._seen, self._other_best)
        raised = torch.maximum(self._other_top, top.double())
        kept = torch.exp(self._other_top - raised)
        self._other_sum = self._other_sum * kept + torch.exp(other - raised.float().unsqueeze(1)).sum(
            1, dtype=torch.float64
        )
        self._other_top = raised

    def difference(self) -> Difference:
        """Of what was added."""
        head = self._head_top + self._head_sum.log()
        other = self._other_top + self._other_sum.log()
        divergence = self._apart / self._head_sum - head + other
        # Rounding can leave a divergence of nothing a hair below nothing.
        kl = max(float(divergence.mean()), 0.0)
        return Difference(kl=kl, top1=float((self._head_best == self._other_best).double().mean()))
