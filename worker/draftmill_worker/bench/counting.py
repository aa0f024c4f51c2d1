"""Drafted and accepted tokens: the engine's cumulative counters, differenced over a window."""

from collections.abc import Iterable, Sequence
from typing import Any

from draftmill.benchmarks import Counts

DRAFTS = "vllm:spec_decode_num_drafts"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


def read(metrics: Iterable[Any]) -> Counts | None:
    """Since the engine's start, over all its engines; None when it counts no drafts at all."""
    found: dict[str, list[Any]] = {}
    for metric in metrics:
        found.setdefault(metric.name, []).append(metric)
    if DRAFTS not in found:
        return None
    values = [metric.values for metric in found.get(PER_POSITION, [])]
    length = max(map(len, values), default=0)
    padded = [[*value, *[0] * (length - len(value))] for value in values]
    return Counts(
        drafts=_sum(found, DRAFTS),
        draft_tokens=_sum(found, DRAFT_TOKENS),
        accepted=_sum(found, ACCEPTED),
        accepted_per_position=tuple(int(sum(column)) for column in zip(*padded, strict=True)),
    )


def _sum(found: dict[str, list[Any]], name: str) -> int:
    return int(sum(metric.value for metric in found.get(name, [])))


def difference(after: Counts | None, before: Counts | None) -> Counts | None:
    """What was counted between two readings."""
    if after is None:
        return None
    if before is None:
        return after
    length = max(len(after.accepted_per_position), len(before.accepted_per_position))
    later, earlier = _padded(after, length), _padded(before, length)
    return Counts(
        drafts=after.drafts - before.drafts,
        draft_tokens=after.draft_tokens - before.draft_tokens,
        accepted=after.accepted - before.accepted,
        accepted_per_position=tuple(x - y for x, y in zip(later, earlier, strict=True)),
    )


def total(counts: Sequence[Counts]) -> Counts | None:
    """None for none."""
    if not counts:
        return None
    length = max(len(count.accepted_per_position) for count in counts)
    return Counts(
        drafts=sum(count.drafts for count in counts),
        draft_tokens=sum(count.draft_tokens for count in counts),
        accepted=sum(count.accepted for count in counts),
        accepted_per_position=tuple(map(sum, zip(*(_padded(count, length) for count in counts), strict=True))),
    )


def _padded(counts: Counts, length: int) -> tuple[int, ...]:
    return counts.accepted_per_position + (0,) * (length - len(counts.accepted_per_position))


def acceptance_length(counts: Counts | None) -> float | None:
    """1 + accepted / drafts; None where nothing was drafted, which is never a number."""
    return None if counts is None or counts.drafts == 0 else 1 + counts.accepted / counts.drafts


def conditional(counts: Counts | None) -> tuple[float, ...]:
    """Acceptance at each position given that all positions before it were accepted: a_i / a_(i-1), a_0 = drafts.

    It ends at the first position that nothing reached.
    """
    if counts is None:
        return ()
    rates, reached = [], counts.drafts
    for accepted in counts.accepted_per_position:
        if reached == 0:
            break
        rates.append(accepted / reached)
        reached = accepted
    return tuple(rates)
