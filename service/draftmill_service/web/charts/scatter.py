"""Size against acceptance length: one point a job, the control, intervals, and the Pareto front."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftmill_service.web.charts.axis import Axis, axis
from draftmill_service.web.comparison import Candidate

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 56, 180, 16, 44
_LABEL_GAP = 14.0


@dataclass(frozen=True)
class Point:
    candidate: Candidate
    x: float
    y: float
    low: float | None
    """Where the interval's lower end is drawn."""
    high: float | None
    label_y: float


@dataclass(frozen=True)
class Scatter:
    x: Axis
    y: Axis
    points: tuple[Point, ...]
    front: str
    """The Pareto front as `points` of a polyline."""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def scatter(candidates: Sequence[Candidate]) -> Scatter:
    """`x` is in bytes."""
    x = axis((each.bytes for each in candidates), LEFT, WIDTH - RIGHT)
    lengths = [value for each in candidates for value in (each.al, each.low, each.high) if value is not None]
    y = axis(lengths, HEIGHT - BOTTOM, TOP)
    labels = _labels([y.at(each.al) for each in candidates])
    points = tuple(
        Point(
            each,
            x.at(each.bytes),
            y.at(each.al),
            None if each.low is None else y.at(each.low),
            None if each.high is None else y.at(each.high),
            label,
        )
        for each, label in zip(candidates, labels, strict=True)
    )
    front = sorted((point for point in points if point.candidate.best), key=lambda point: point.x)
    return Scatter(x, y, points, " ".join(f"{point.x},{point.y}" for point in front))


def _labels(wanted: list[float]) -> list[float]:
    """Heights of labels near the wanted ones, none upon another."""
    placed: dict[int, float] = {}
    floor = float("-inf")
    for index in sorted(range(len(wanted)), key=wanted.__getitem__):
        floor = max(wanted[index], floor + _LABEL_GAP)
        placed[index] = floor
    below = HEIGHT - BOTTOM + _LABEL_GAP
    for index in sorted(placed, key=placed.__getitem__, reverse=True):
        below = min(placed[index], below - _LABEL_GAP)
        placed[index] = round(below, 2)
    return [placed[index] for index in range(len(wanted))]
