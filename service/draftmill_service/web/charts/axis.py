"""Axes with round numbers."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, log10

_STEPS = (1, 2, 2.5, 5, 10)
_LEAST_STEP = 1e-6
"""Values closer than this are drawn as one: their ticks could not be told apart."""


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    ticks: tuple[float, ...]
    start: float
    """Where `low` is drawn, in user units."""
    end: float

    def at(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 2)

    @property
    def marks(self) -> list[tuple[float, float]]:
        """Place and value of each tick."""
        return [(self.at(tick), tick) for tick in self.ticks]

    def label(self, value: float) -> str:
        """A tick's value, with as many decimals as tell every tick of this axis exactly."""
        decimals = next((n for n in range(10) if all(abs(round(tick, n) - tick) < 1e-9 for tick in self.ticks)), 10)
        return f"{value:.{decimals}f}"


def axis(
    values: Iterable[float], start: float, end: float, *, about: int = 5, pad: float = 0.08, origin: float | None = None
) -> Axis:
    """An axis that holds the values with some air, in about so many round steps; it begins at `origin` where one is
    given."""
    values = list(values)
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    air = (high - low) * pad or abs(high) * pad or 1.0
    low, high = (low - air if low < 0 else max(0.0, low - air)), high + air
    step = max(_round_step((high - low) / about), _LEAST_STEP)
    low = floor(low / step) * step if origin is None else origin
    count = max(1, ceil(round((high - low) / step, 6)))
    high = low + step * count
    return Axis(low, high, tuple(round(low + step * n, 10) for n in range(count + 1)), start, end)


def _round_step(rough: float) -> float:
    magnitude = 10.0 ** floor(log10(rough))
    return float(next(step * magnitude for step in _STEPS if step * magnitude >= rough * 0.999))
