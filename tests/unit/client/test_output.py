"""Text for people."""

from datetime import UTC, datetime, timedelta

import pytest

from draftmill import Event, EventKind, Format, JobState, QuantizeOptions
from draftmill.cli.output import columns, plain, size
from draftmill.cli.request import Request, UsageProblemError, job_spec
from draftmill.cli.text import event_line, job_lines, job_rows, moment
from draftmill.jobs import ResolvedSource, ResolvedSpec
from tests.unit.client.conftest import make_job

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert plain("a\x1b[2J\r\n\x07b\x9b") == "a [2J   b "


def test_columns_line_up() -> None:
    assert columns([("A", "COUNT"), ("long", 7)], right=frozenset({1})) == ["A     COUNT", "long      7"]


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (3 << 40, "3.00 TiB")])
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("text", "delta"),
    [
        ("30s", timedelta(seconds=30)),
        ("90m", timedelta(minutes=90)),
        ("2h", timedelta(hours=2)),
        ("3d", timedelta(days=3)),
    ],
)
def test_a_deadline_may_be_a_duration(text: str, delta: timedelta) -> None:
    assert job_spec(Request("a/b", "fp8", deadline=text), NOW).deadline == NOW + delta


@pytest.mark.parametrize(
    "text",
    ["-5m", "1.5h", "1.5", "99", "999999999d", "\u0663m", "soon", "9999-12-31T23:59:59-12:00", "2030-01-01T00:00:00"],
)
def test_a_deadline_that_is_none_is_said(text: str) -> None:
    with pytest.raises(UsageProblemError) as caught:
        job_spec(Request("a/b", "fp8", deadline=text), NOW)
    assert [offender.where for offender in caught.value.problem.offenders] == ["--deadline"]


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (EventKind.STATE, {"state": "failed", "reason": "verify_failed"}, "failed (verify_failed)"),
        (EventKind.STAGE, {"stage": "pull", "state": "running"}, "pull running"),
        (
            EventKind.STAGE,
            {"stage": "bench", "state": "pending", "waiting": {"place": 2, "devices": 8}},
            "bench waits for 8 devices, place 2 in line",
        ),
        (
            EventKind.PROGRESS,
            {"stage": "pull", "progress": {"done": 1, "total": 2, "unit": "bytes"}},
            "pull 1 of 2 bytes",
        ),
        (EventKind.LOG, {"level": "warning", "message": "slow\x1b"}, "warning: slow "),
        (EventKind.ATTEMPT, {"attempt": 1, "worker": "w"}, "1 on w"),
        (EventKind.ATTEMPT, {"attempt": 2, "outcome": "lost"}, "2 lost"),
    ],
)
def test_events_read_as_lines(kind: EventKind, data: dict[str, object], text: str) -> None:
    assert event_line(Event(id="1-0", job="j", time=NOW, kind=kind, data=data)).endswith(f"{kind:<8} {text}")


def test_a_job_reads_as_lines() -> None:
    lines = job_lines(make_job())
    assert lines[:4] == [
        f"job        {make_job().id}",
        "state      queued",
        "source     org/drafter@main",
        "format     fp8",
    ]


def test_the_list_shows_when_a_job_was_created() -> None:
    job = make_job().model_copy(update={"created_at": NOW - timedelta(days=400)})
    assert moment(NOW - timedelta(days=400)) in job_rows([job])[1]


def test_a_variant_is_shown_once_it_is_sealed() -> None:
    source = ResolvedSource(repo="org/drafter", commit="c" * 40, manifest_sha256="b" * 64)
    resolved = ResolvedSpec(
        source=source,
        format=Format.FP8,
        quantize=QuantizeOptions(),
        family="eagle3",
        quantizer="q",
        variant="a" * 64,
    )
    for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELED, JobState.RUNNING):
        job = make_job(state).model_copy(update={"resolved_spec": resolved})
        assert ("a" * 64 in "\n".join(job_lines(job))) is (state is JobState.SUCCEEDED)
