"""Acceptance length per category of prompts, one bar a variant."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftmill_service.web.charts.axis import Axis, axis
from draftmill_service.web.comparison import Series

WIDTH = 720
LEFT, RIGHT, TOP, BOTTOM = 130, 56, 8, 34
BAR, GAP = 12, 14


@dataclass(frozen=True)
class Bar:
    series: Series
    y: float
    width: float
    al: float


@dataclass(frozen=True)
class Group:
    category: str
    y: float
    """Middle of the group."""
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Bars:
    groups: tuple[Group, ...]
    x: Axis
    height: float
    width: int = WIDTH
    left: int = LEFT
    top: int = TOP
    bar: int = BAR


def category_bars(series: Sequence[Series]) -> Bars:
    categories = sorted({name for each in series for name in each.categories})
    values = [value for each in series for value in each.categories.values()]
    # An acceptance length begins at 1: nothing accepted.
    x = axis([1.0, *values], LEFT, WIDTH - RIGHT, about=6, origin=1.0)
    groups: list[Group] = []
    top = float(TOP)
    for category in categories:
        there = [(each, each.categories[category]) for each in series if category in each.categories]
        bars = tuple(
            Bar(each, top + BAR * number, round(x.at(al) - LEFT, 2), al) for number, (each, al) in enumerate(there)
        )
        groups.append(Group(category, top + BAR * len(bars) / 2, bars))
        top += BAR * len(bars) + GAP
    return Bars(tuple(groups), x, top + BOTTOM)
