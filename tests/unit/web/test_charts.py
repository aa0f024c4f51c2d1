"""Geometry of the drawings, and what is drawn from a job and its benchmarks."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftmill import Format, Job, JobSpec, JobState, RepoSource
from draftmill.benchmarks import Arm, ArmName, Counts
from draftmill.jobs import Attempt, Progress, StageRecord
from draftmill.states import Stage, StageState
from draftmill_service.web.charts.axis import axis
from draftmill_service.web.charts.bars import category_bars
from draftmill_service.web.charts.curves import acceptance_curves
from draftmill_service.web.charts.scatter import scatter
from draftmill_service.web.charts.timeline import WIDTH, timeline
from draftmill_service.web.comparison import Candidate, Series, front, samples
from draftmill_service.web.tickets import Tickets

START = datetime(2026, 11, 30, 12, tzinfo=UTC)
NUMBERS = st.lists(st.floats(0, 1e13, allow_nan=False), min_size=1, max_size=20)


def candidate(size: int, al: float, *, passed: bool | None = True, **more: Any) -> Candidate:
    return Candidate(
        **{"name": "x", "job": None, "low": None, "high": None, "emulated": False, "mark": 1} | more,
        bytes=size,
        al=al,
        passed=passed,
    )


def series(al: float | None, categories: dict[str, float] | None = None, **more: Any) -> Series:
    known = {"mark": 1, "name": "a", "href": None, "rates": (), "samples": (), "emulated": False}
    return Series(**known | more, al=al, categories=categories or {})


def test_more_series_than_colours_begin_anew() -> None:
    drawn = [series(2.0, mark=mark) for mark in range(18)]
    assert [each.colour for each in drawn] == [0, *range(1, 9), *range(1, 9), 1]
    assert [each.again for each in drawn] == [False] * 9 + [True] * 9


@given(NUMBERS)
def test_an_axis_holds_its_values_in_even_steps(values: list[float]) -> None:
    drawn = axis(values, 50, 650)
    assert drawn.low <= min(values)
    assert max(values) <= drawn.high
    assert 2 <= len(drawn.ticks) <= 14
    assert all(50 <= drawn.at(value) <= 650 for value in values)
    steps = [b - a for a, b in pairwise(drawn.ticks)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-3)


@pytest.mark.parametrize(("low", "high"), [(0.921, 0.936), (0.9, 0.901), (0.2, 0.9), (1.0, 4.0), (1.0, 1e9)])
def test_labels_of_ticks_are_exact_and_differ(low: float, high: float) -> None:
    drawn = axis([low, high], 0, 100, about=4)
    labels = [drawn.label(tick) for tick in drawn.ticks]
    assert [float(label) for label in labels] == pytest.approx(drawn.ticks, rel=0, abs=1e-9)
    assert len(set(labels)) == len(labels)


def test_bars_begin_where_nothing_is_accepted() -> None:
    one = series(2.0, {"code": 3.0, "math": 1.0})
    two = series(2.0, {"code": 2.0})
    drawn = category_bars([one, two])
    assert drawn.x.low == 1.0
    code, math = drawn.groups
    assert code.bars[0].width == pytest.approx(2 * code.bars[1].width, abs=0.02)
    assert math.bars[0].width == 0
    assert code.bars[-1].y + drawn.bar < math.bars[0].y


def test_a_position_has_as_many_samples_as_drafts_came_so_far() -> None:
    counts = Counts(drafts=10, draft_tokens=30, accepted=13, accepted_per_position=(8, 4, 1))
    sha = "0" * 64
    arm = Arm(name=ArmName.VARIANT, receipt="b", prompts=(), counts=counts, al=2.3, output_sha256=sha)
    assert samples(arm) == (10, 8, 4)
    drawn = acceptance_curves([series(2.3, rates=(0.8, 0.5, 0.25), samples=samples(arm))])
    (curve,) = drawn.curves
    assert [(dot.position, dot.samples) for dot in curve.dots] == [(1, 10), (2, 8), (3, 4)]
    assert [dot.y for dot in curve.dots] == sorted(dot.y for dot in curve.dots)
    assert acceptance_curves([series(None)]).curves[0].dots == ()


def test_the_front_is_of_those_that_passed() -> None:
    good, small, large, failed = (
        candidate(50, 3.0),
        candidate(40, 2.0),
        candidate(100, 2.9),
        candidate(30, 3.5, passed=False),
    )
    control = candidate(100, 3.2, passed=None)
    assert [each.best for each in front([good, small, large, failed, control])] == [True, True, False, False, True]
    twins = front([candidate(50, 3.0), candidate(50, 3.0)])
    assert [each.best for each in twins] == [True, True]


@given(st.lists(st.tuples(st.integers(0, 10**12), st.floats(1, 8)), min_size=1, max_size=20))
def test_labels_of_points_do_not_lie_upon_each_other(points: list[tuple[int, float]]) -> None:
    drawn = scatter([candidate(size, al) for size, al in points])
    heights = sorted(point.label_y for point in drawn.points)
    assert all(b - a >= 13.9 for a, b in pairwise(heights))
    assert heights[-1] <= drawn.bottom


def job(**fields: Any) -> Job:
    spec = JobSpec(source=RepoSource(repo="org/drafter"), format=Format.FP8)
    states = {JobState.QUEUED: START, JobState.RUNNING: START}
    known = {"id": "j" + "0" * 26, "state": JobState.RUNNING, "spec": spec, "created_at": START, "timestamps": states}
    return Job.model_validate(known | fields)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_timeline_shows_waits_attempts_and_stages() -> None:
    lost = Attempt(number=1, worker="a", started_at=at(10), ended_at=at(30), outcome="lost")
    pull = StageRecord(name=Stage.PULL, state=StageState.SUCCEEDED, started_at=at(50), ended_at=at(60))
    plan = StageRecord(
        name=Stage.PLAN, state=StageState.RUNNING, started_at=at(60), progress=Progress(done=1, total=4, unit="tensors")
    )
    second = Attempt(number=2, worker="b", started_at=at(50), stages=(pull, plan))
    rows = timeline(job(attempts=(lost, second)), now=at(100))
    assert [(row.kind, row.name, row.seconds) for row in rows] == [
        ("wait", "queued", 10),
        ("attempt", "attempt 1", 20),
        ("wait", "queued", 20),
        ("attempt", "attempt 2", None),
        ("stage", "pull", 10),
        ("stage", "plan", None),
    ]
    assert [(row.x, row.width) for row in rows] == [
        (0, 100),
        (100, 200),
        (300, 200),
        (500, 500),
        (500, 100),
        (600, 400),
    ]
    assert rows[-1].share == 0.25


def test_a_queued_job_waits_until_now_and_a_canceled_one_until_its_end() -> None:
    (waiting,) = timeline(job(state=JobState.QUEUED, timestamps={JobState.QUEUED: START}), now=at(5))
    assert (waiting.kind, waiting.state, waiting.seconds, waiting.width) == ("wait", "running", None, WIDTH)
    canceled = {JobState.QUEUED: START, JobState.CANCELED: at(7)}
    (ended,) = timeline(job(state=JobState.CANCELED, timestamps=canceled))
    assert (ended.state, ended.seconds) == ("done", 7)


def test_old_tickets_are_removed_when_one_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tickets = Tickets(tmp_path)
    old = tickets.issue("a")
    monkeypatch.setattr("draftmill_service.web.tickets.time", SimpleNamespace(time=lambda: 2**40))
    tickets.issue("b")
    assert len(list((tmp_path / "tickets").iterdir())) == 1
    monkeypatch.undo()
    assert tickets.redeem(old) is None
