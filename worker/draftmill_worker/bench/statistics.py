"""What a comparison of two arms says, with the uncertainty that comes from the choice of prompts."""

import numpy as np
from numpy.typing import NDArray

from draftmill.benchmarks import Arm, Counts, Interval
from draftmill.problems import ProblemError
from draftmill_worker.bench import counting

RESAMPLES = 10_000
SEED = 20_261_130
_BLOCK = 1 << 20
"""Draws that are held at once."""


def units(arm: Arm) -> dict[str, Counts]:
    """What was counted as one, by a name that is the same in every arm: each prompt, or each group of them."""
    if arm.groups:
        return {"+".join(group.ids): group.counts for group in arm.groups if group.counts is not None}
    return {prompt.id: prompt.counts for prompt in arm.prompts if prompt.counts is not None}


def relative_change(variant: Arm, control: Arm, confidence: float) -> Interval:
    """Relative change of accepted tokens per draft, (A_v/D_v) / (A_c/D_c) - 1, each A and D a sum over prompts.

    The interval is the percentile bootstrap over prompts, paired: a resample draws prompts, and takes both arms'
    counts of each (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). A resample whose control
    accepted nothing counts as a total loss. ProblemError("bench-failed") when the arms do not pair, or the control as
    a whole accepted nothing.
    """
    table = _paired(variant, control)
    if table[:, 2].sum() == 0:
        raise ProblemError("bench-failed", "the control accepted nothing, so that it says nothing about the variant")
    tail = (1 - confidence) / 2
    low, high = np.quantile(_change(_resampled(table)), (tail, 1 - tail))
    value = float(_change(table.sum(axis=0, keepdims=True))[0])
    return Interval(value=value, low=float(low), high=float(high), confidence=confidence)


def length_difference(one: Arm, other: Arm, confidence: float) -> Interval:
    """Acceptance length of `one` less that of `other`, by the same paired bootstrap; a resample without drafts has
    length 1. ProblemError("bench-failed") when the arms do not pair."""
    table = _paired(one, other)
    tail = (1 - confidence) / 2
    low, high = np.quantile(_difference(_resampled(table)), (tail, 1 - tail))
    value = float(_difference(table.sum(axis=0, keepdims=True))[0])
    return Interval(value=value, low=float(low), high=float(high), confidence=confidence)


def length_interval(arm: Arm, confidence: float) -> tuple[float, float]:
    """Of the arm's acceptance length, 1 + A/D, by the same bootstrap over prompts."""
    counted = units(arm)
    rows = [(counted[name].accepted, counted[name].drafts) for name in sorted(counted)]
    sums = _resampled(np.array(rows, dtype=np.float64))
    tail = (1 - confidence) / 2
    low, high = np.quantile(_lengths(sums[:, 0], sums[:, 1]), (tail, 1 - tail))
    return float(low), float(high)


def _paired(one: Arm, other: Arm) -> NDArray[np.float64]:
    """[prompts, 4]: accepted and drafts of `one`, then of `other`."""
    ours, theirs = units(one), units(other)
    if not ours or ours.keys() != theirs.keys():
        raise ProblemError("bench-failed", "the arms did not run the same prompts")
    return np.array(
        [(ours[name].accepted, ours[name].drafts, theirs[name].accepted, theirs[name].drafts) for name in sorted(ours)],
        dtype=np.float64,
    )


def _resampled(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """[RESAMPLES, columns] sums over prompts drawn with replacement; the same for the same table."""
    random = np.random.default_rng(SEED)
    count = len(table)
    sums = []
    for start in range(0, RESAMPLES, step := max(1, _BLOCK // count)):
        draws = random.integers(0, count, size=(min(step, RESAMPLES - start), count))
        sums.append(table[draws].sum(axis=1))
    return np.concatenate(sums)


def _lengths(accepted: NDArray[np.float64], drafts: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(drafts > 0, 1 + accepted / drafts, 1.0)


def _difference(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return _lengths(sums[:, 0], sums[:, 1]) - _lengths(sums[:, 2], sums[:, 3])


def _change(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    accepted, drafts, control_accepted, control_drafts = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        change = (accepted / drafts) / (control_accepted / control_drafts) - 1
    return np.where((control_accepted > 0) & (drafts > 0), change, -1.0)


def spread(arms: tuple[Arm, ...]) -> float | None:
    """Largest relative difference of accepted tokens per draft among runs of the same thing; None for a single run."""
    rates = [length - 1 for arm in arms if (length := counting.acceptance_length(arm.counts)) is not None]
    if len(rates) < 2 or min(rates) <= 0:
        return None
    return max(rates) / min(rates) - 1
