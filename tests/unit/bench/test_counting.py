"""Counters are cumulative: what a window saw is a difference, and nothing drafted is no number."""

from dataclasses import dataclass

import pytest

from draftmill.benchmarks import Counts
from draftmill_worker.bench import counting
from tests.unit.bench.arms import counts


@dataclass
class Counter:
    name: str
    value: int


@dataclass
class Vector:
    name: str
    values: list[int]


def _metrics(drafts: int, tokens: int, accepted: int, by_position: list[int]) -> list[Counter | Vector]:
    return [
        Counter(counting.DRAFTS, drafts),
        Counter(counting.DRAFT_TOKENS, tokens),
        Counter(counting.ACCEPTED, accepted),
        Vector(counting.PER_POSITION, by_position),
    ]


def test_an_engine_without_these_counters_counts_nothing() -> None:
    assert counting.read([Counter("vllm:num_requests", 3)]) is None


def test_counters_of_several_engines_are_added() -> None:
    found = counting.read([*_metrics(2, 6, 3, [2, 1]), *_metrics(3, 9, 4, [2, 1, 1])])
    assert found == Counts(drafts=5, draft_tokens=15, accepted=7, accepted_per_position=(4, 2, 1))


def test_what_was_counted_before_the_window_is_left_out() -> None:
    warm, after = counting.read(_metrics(10, 30, 12, [8, 4])), counting.read(_metrics(16, 48, 24, [13, 7, 4]))
    assert counting.difference(after, warm) == Counts(
        drafts=6, draft_tokens=18, accepted=12, accepted_per_position=(5, 3, 4)
    )
    assert counting.difference(after, None) == after
    assert counting.difference(None, warm) is None


def test_no_drafts_is_never_a_number() -> None:
    assert counting.acceptance_length(None) is None
    assert counting.acceptance_length(counts(0, 0, 0)) is None
    assert counting.acceptance_length(counts(4, 0, 0)) == 1.0
    assert counting.acceptance_length(counts(4, 3, 2, 1)) == 2.5


def test_conditional_acceptance_is_of_those_that_got_there() -> None:
    assert counting.conditional(counts(10, 8, 4, 1)) == pytest.approx((0.8, 0.5, 0.25))
    assert counting.conditional(counts(10, 4, 0, 0)) == (0.4, 0.0)
    assert counting.conditional(counts(0, 0)) == ()


def test_a_total_is_over_positions_too() -> None:
    assert counting.total([counts(2, 1), counts(3, 2, 1)]) == Counts(
        drafts=5, draft_tokens=8, accepted=4, accepted_per_position=(3, 1)
    )
    assert counting.total([]) is None
