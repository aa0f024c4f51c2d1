"""`draftmill batch` against a scripted service: a file in, a batch and an exit code out."""

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from draftmill import Batch, BatchItem, BatchReport, BatchSpec, BatchSummary, Format, JobState, RepoSource
from draftmill.batch_table import COLUMNS
from draftmill.batches import BatchItemPage, BatchPage, BatchReason, ReportRow
from draftmill.benchmarks import Verdict
from draftmill.cli.exits import ExitCode
from draftmill.cli.main import run
from draftmill.states import Reason
from tests.unit.client.conftest import KEY
from tests.unit.client.scripted import Scripted, document, problem

ID = "s" + "0" * 26
NOW = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = BatchSpec(
    sources=(RepoSource(repo="org/a"), RepoSource(repo="org/b")),
    formats=(Format.FP8, Format.NVFP4),
    labels={"team": "x"},
)


def make_batch(state: JobState = JobState.QUEUED, reason: BatchReason | None = None, **counts: int) -> Batch:
    return Batch(
        id=ID,
        state=state,
        reason=reason,
        labels=SPEC.labels,
        total=4,
        made=4,
        sources=2,
        formats=2,
        options=1,
        counts={each: counts.get(each.value, 0) for each in JobState},
        created_at=NOW,
        timestamps={state: NOW},
        spec=SPEC,
    )


def make_item(index: int, state: JobState, **more: Any) -> BatchItem:
    at = SPEC.position(index)
    place = {"source": SPEC.sources[at.source], "format": SPEC.formats[at.format], "options": "0"}
    return BatchItem(index=index, position=at, job=f"j{index}", state=state, **place, **more)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Scripted]:
    with Scripted([document(make_batch(queued=4).model_dump_json())]) as server:
        monkeypatch.setenv("DRAFTMILL_URL", server.url)
        monkeypatch.setenv("DRAFTMILL_API_KEY", KEY)
        monkeypatch.setenv("DRAFTMILL_DATA_DIR", str(tmp_path))
        yield server


def test_submit_reads_the_short_forms(
    server: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "one.yaml").write_text(
        "sources: [org/a, org/b@v2, {repo: org/c, revision: dev}, ./run]\n"
        "formats: [FP8, nvfp4]\n"
        "options: [{}, {name: keep-fc, quantize: {exclude: ['*fc*']}}]\n"
        "benchmark: {target: org/target, num_speculative_tokens: 7}\n"
        "deadline: 2h\n"
        "max_failures: 3\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["batch", "submit", "sweeps/one.yaml", "--max-failures", "0", "--idempotency-key", "k"]
    assert run(words) == ExitCode.OK
    assert capsys.readouterr().out == f"{ID} queued, 4 items\n"
    seen = server.seen[0]
    assert (seen.method, seen.path, seen.headers["idempotency-key"]) == ("POST", "/v1/batches", "k")
    sent = json.loads(seen.body)
    assert sent["sources"] == [
        {"repo": "org/a", "revision": "main"},
        {"repo": "org/b", "revision": "v2"},
        {"repo": "org/c", "revision": "dev"},
        {"path": str(tmp_path / "sweeps" / "run")},
    ]
    assert sent["formats"] == ["fp8", "nvfp4"]
    assert [each["name"] for each in sent["options"]] == [None, "keep-fc"]
    assert sent["benchmark"]["target"] == {"repo": "org/target", "revision": "main"}
    assert sent["max_failures"] == 0
    assert datetime.fromisoformat(sent["deadline"]) > datetime.now(UTC)


def test_everything_wrong_in_a_file_is_said_at_once(
    server: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "sources: [org/a, a--b, {pth: /x}]\nformats: [fp8, int3]\ndeadline: soon\n"
        "benchmark: {target: '-', num_speculative_tokens: 0}\nmax_failurs: 1\n"
    )
    assert run(["batch", "submit", str(file), "--json"]) == ExitCode.USAGE
    found = {each["where"] for each in json.loads(capsys.readouterr().out)["offenders"]}
    assert found == {
        "sources[1].repo",
        "sources[2].repo",
        "sources[2].pth",
        "formats[1]",
        "deadline",
        "benchmark.target.repo",
        "benchmark.num_speculative_tokens",
        "max_failurs",
    }
    for words in (["batch", "submit", str(tmp_path / "none.yaml")], ["batch", "submit"]):
        assert run(words) == ExitCode.USAGE
    assert not server.seen


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (JobState.SUCCEEDED, ExitCode.OK),
        (JobState.FAILED, ExitCode.FAILED),
        (JobState.CANCELED, ExitCode.CANCELED),
        (JobState.EXPIRED, ExitCode.EXPIRED),
    ],
)
def test_watch_ends_with_the_outcome(
    server: Scripted, state: JobState, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    running = make_batch(JobState.RUNNING, succeeded=1, running=1, queued=2)
    ended = make_batch(state, **{"succeeded": 3, state.value: 4 if state is JobState.SUCCEEDED else 1})
    server.script = [document(each.model_dump_json()) for each in (running, running, ended)]
    assert run(["batch", "watch", ID]) == code
    out, err = capsys.readouterr()
    # What has not changed is not said again.
    assert err.splitlines()[0] == "running, 1 of 4 done: 1 succeeded; 1 running, 2 queued"
    assert len(err.splitlines()) == 2
    assert out.startswith(f"{ID} {state}, 4 of 4 done")

    server.script = [document(each.model_dump_json()) for each in (running, ended)]
    assert run(["batch", "watch", ID, "--json"]) == code
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["state"] for line in lines] == ["running", state.value]
    assert "spec" not in lines[0]


def test_watch_waits_for_a_service_that_is_away(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    ended = make_batch(JobState.SUCCEEDED, succeeded=4)
    away = [problem("ledger-unavailable", 503) for _ in range(4)]
    server.script = [*away, document(ended.model_dump_json())]
    assert run(["batch", "watch", ID]) == ExitCode.OK
    assert "still trying" in capsys.readouterr().err


def test_show_is_a_matrix_and_why_items_failed(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    batch = make_batch(JobState.FAILED, BatchReason.FAILURE_BUDGET_SPENT, succeeded=2, failed=1, canceled=1)
    failed = make_item(2, JobState.FAILED, reason=Reason.PULL_FAILED, problem="no-weights", detail="nothing\x1b[2J")
    found = (
        make_item(0, JobState.SUCCEEDED),
        make_item(1, JobState.SUCCEEDED),
        failed,
        make_item(3, JobState.CANCELED, reason=Reason.BATCH_STOPPED),
    )
    pages = document(BatchItemPage(items=found).model_dump_json())
    server.script = lambda seen: pages if "items" in seen.path else document(batch.model_dump_json())
    assert run(["batch", "show", ID]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "state      failed (failure_budget_spent)"
    assert [line.split() for line in lines if line.startswith(("SOURCE", "org/"))] == [
        ["SOURCE", "FP8", "NVFP4"],
        ["org/a@main", "succeeded", "succeeded"],
        ["org/b@main", "failed", "canceled"],
    ]
    assert lines[-1] == "failed     org/b@main fp8 j2: no-weights nothing [2J"
    assert run(["batch", "items", ID, "--state", "failed"]) == ExitCode.OK
    assert "state=failed" in server.seen[-1].path


def test_report_as_table_and_as_csv(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    batch = make_batch(JobState.SUCCEEDED, succeeded=4)
    measured = {"source_bytes": 2048, "variant_bytes": 1024, "ratio": 0.5, "control_al": 3.0, "al": 2.875}
    measured |= {"al_low": 2.75, "al_high": 3.0, "verdict": Verdict.PASSED, "emulated": False, "pareto": True}
    rows = (
        ReportRow(**dict(make_item(0, JobState.SUCCEEDED)), **measured),
        ReportRow(**dict(make_item(1, JobState.FAILED, reason=Reason.PULL_FAILED))),
    )
    known = {name: getattr(batch, name) for name in BatchSummary.model_fields}
    server.script = [document(BatchReport(batch=BatchSummary(**known), rows=rows).model_dump_json())]
    assert run(["batch", "report", ID]) == ExitCode.OK
    first = " ".join(capsys.readouterr().out.splitlines()[1].split())
    assert first == "org/a@main fp8 0 succeeded 2.00 KiB 1.00 KiB 50.0% 3.000 2.875 2.750 3.000 passed *"
    assert run(["batch", "report", ID, "--csv"]) == ExitCode.OK
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert tuple(found[0]) == COLUMNS
    assert (found[0]["al"], found[0]["pareto"], found[0]["emulated"]) == ("2.875", "true", "false")
    assert (found[1]["al"], found[1]["reason"]) == ("", "pull_failed")


def test_list_cancel_and_retry(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    batch = make_batch(JobState.RUNNING, succeeded=1, running=1, queued=2)
    known = {name: getattr(batch, name) for name in BatchSummary.model_fields}
    page = document(BatchPage(items=(BatchSummary(**known),)).model_dump_json())
    server.script = lambda seen: page if seen.method == "GET" else document(batch.model_dump_json())
    assert run(["batch", "list", "--state", "running", "--label", "team=x"]) == ExitCode.OK
    assert "1 of 4 done" in capsys.readouterr().out
    assert server.seen[-1].path == "/v1/batches?state=running&limit=50&label=team%3Dx"
    for verb in ("cancel", "retry"):
        assert run(["batch", verb, ID]) == ExitCode.OK
        assert server.seen[-1].path == f"/v1/batches/{ID}/{verb}"
        assert capsys.readouterr().out == f"{ID} running, 1 of 4 done: 1 succeeded; 1 running, 2 queued\n"
