"""Acceptance by position, given that the positions before were accepted."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftmill_service.web.charts.axis import Axis, axis
from draftmill_service.web.comparison import Series

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 16, 44


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    position: int
    rate: float
    samples: int
    """Drafts that came as far as this position."""


@dataclass(frozen=True)
class Curve:
    series: Series
    dots: tuple[Dot, ...]

    @property
    def line(self) -> str:
        return " ".join(f"{dot.x},{dot.y}" for dot in self.dots)


@dataclass(frozen=True)
class Curves:
    curves: tuple[Curve, ...]
    y: Axis
    positions: tuple[tuple[float, int], ...]
    """Place and number of each position."""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def acceptance_curves(series: Sequence[Series]) -> Curves:
    most = max(1, *(len(each.rates) for each in series))
    step = (WIDTH - LEFT - RIGHT) / most
    places = tuple((round(LEFT + step * (number + 0.5), 2), number + 1) for number in range(most))
    y = axis((rate for each in series for rate in each.rates), HEIGHT - BOTTOM, TOP, about=4)
    curves = tuple(
        Curve(
            each,
            tuple(
                Dot(x, y.at(rate), number, rate, samples)
                for (x, number), rate, samples in zip(places, each.rates, each.samples, strict=False)
            ),
        )
        for each in series
    )
    return Curves(curves, y, places)
