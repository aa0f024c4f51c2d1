"""The command line against a scripted service: words in, words and exit codes out."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftmill import Client, Format, JobState
from draftmill.benchmarks import Verdict
from draftmill.cli.exits import HELP, ExitCode
from draftmill.cli.main import run
from draftmill.jobs import AcceptanceSummary
from draftmill.problems import URN
from tests.fixtures import verdicts
from tests.redis_server import free_port
from tests.unit.client.conftest import KEY, make_job
from tests.unit.client.scripted import Scripted, document, job_answer, problem
from tests.unit.client.test_download import FILES, Store, tree
from tests.unit.client.test_watch import Service, event, stream

JOB = make_job()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Scripted]:
    with Scripted([job_answer(JOB)]) as server:
        monkeypatch.setenv("DRAFTMILL_URL", server.url)
        monkeypatch.setenv("DRAFTMILL_API_KEY", KEY)
        monkeypatch.setenv("DRAFTMILL_DATA_DIR", str(tmp_path))
        yield server


def test_submit_prints_the_id_and_sends_every_option(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    words = "submit org/drafter -f NVFP4 --revision v2 --exclude *fc* --exclude *o* --lm-head --scales reference"
    more = "--dtype keep --label a=1 --label b=x=y --deadline 2030-01-01T00:00:00Z --idempotency-key k"
    assert run([*words.split(), *more.split()]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert out == f"{JOB.id} queued\n"
    assert f"draftmill jobs watch {JOB.id}" in err
    sent = json.loads(server.seen[0].body)
    assert sent["source"] == {"repo": "org/drafter", "revision": "v2"}
    options = {"exclude": ["*fc*", "*o*"], "lm_head": True, "scales": "reference", "dtype": "keep", "merge": False}
    assert sent["quantize"] == options | {"nvfp4_scale_search": False}
    assert (sent["format"], sent["labels"]) == ("nvfp4", {"a": "1", "b": "x=y"})
    assert sent["deadline"] == "2030-01-01T00:00:00Z"
    assert server.seen[0].headers["idempotency-key"] == "k"


def test_a_scale_search_is_asked_for_where_there_is_one(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["submit", "org/drafter", "-f", "nvfp4", "--nvfp4-scale-search"]) == ExitCode.OK
    assert json.loads(server.seen[0].body)["quantize"]["nvfp4_scale_search"] is True
    for format in ("fp8", "int4_g128"):
        assert run(["submit", "org/drafter", "-f", format, "--nvfp4-scale-search"]) == ExitCode.USAGE
        assert f"{format} has no such block scales" in capsys.readouterr().err
    assert len(server.seen) == 1


def test_a_path_is_made_absolute(server: Scripted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["submit", "./out/run", "--format", "fp8"]) == ExitCode.OK
    assert json.loads(server.seen[0].body)["source"] == {"path": str(tmp_path / "out" / "run")}


def test_a_repository_that_is_a_folder_too_is_noted(
    server: Scripted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src" / "big").mkdir(parents=True)
    assert run(["submit", "src/big", "--format", "fp8"]) == ExitCode.OK
    assert "write ./src/big\n" in capsys.readouterr().err
    assert json.loads(server.seen[0].body)["source"]["repo"] == "src/big"
    assert run(["submit", "src/small", "--format", "fp8"]) == ExitCode.OK
    assert "note:" not in capsys.readouterr().err


def test_everything_wrong_is_said_at_once_and_nothing_is_sent(
    server: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = "a//b --format int3 --revision ../x --scales odd --dtype int8 --label q --label k=1 --label k=2".split()  # noqa: SIM905
    assert run(["submit", *wrong, "--deadline", "soon", "--exclude", ""]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    for where in ("REPO", "--revision", "--format", "--scales", "--dtype", "--label", "--deadline", "--exclude"):
        assert f"\n  {where}: " in err
    assert server.seen == []


def test_json_makes_the_problem_a_document(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["submit", "a//b", "--format", "int3", "--json"]) == ExitCode.USAGE
    shown = json.loads(capsys.readouterr().out)
    assert shown["type"] == URN + "invalid-request"
    assert [offender["where"] for offender in shown["offenders"]] == ["REPO", "--format"]


@pytest.mark.parametrize("words", ["nonsense", "submit", "jobs", "jobs list --state odd", "jobs show", "download x"])
def test_a_wrong_command_line_is_exit_code_2(words: str, server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.split()) == ExitCode.USAGE
    assert capsys.readouterr().out == ""
    assert run([*words.split(), "--json"]) == ExitCode.USAGE
    assert json.loads(capsys.readouterr().out)["type"] == URN + "invalid-request"
    assert server.seen == []


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (JobState.SUCCEEDED, ExitCode.OK),
        (JobState.FAILED, ExitCode.FAILED),
        (JobState.CANCELED, ExitCode.CANCELED),
        (JobState.EXPIRED, ExitCode.EXPIRED),
    ],
)
def test_the_exit_code_is_the_outcome(
    server: Scripted, capsys: pytest.CaptureFixture[str], state: JobState, code: ExitCode
) -> None:
    ended = make_job(state)
    server.script = lambda seen: stream(event(1, state)) if seen.path.endswith("/events") else job_answer(ended)
    assert run(["jobs", "watch", JOB.id]) == code
    out, err = capsys.readouterr()
    assert f"state    {state}" in err
    assert f"state      {state}" in out
    assert run(["submit", "a/b", "-f", "fp8", "--wait", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["state"] == state


def test_watch_with_json_is_one_event_a_line(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.script = Service(stream(event(1)), stream(event(2, "succeeded")))
    assert run(["jobs", "watch", JOB.id, "--json"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["1-0", "2-0"]


def test_watch_says_that_the_service_is_away_and_goes_on(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.script = Service(stream(b"event: ledger-unavailable\n\n", event(1)), stream(event(2, "succeeded")))
    assert run(["jobs", "watch", JOB.id]) == ExitCode.OK
    assert "The service is away (The ledger cannot be reached); still trying.\n" in capsys.readouterr().err


def test_a_refusal_is_exit_code_3_with_all_offenders(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.script = [
        problem("conflict", 409, "no\x1b[31m", offenders=[{"where": "state", "message": "is done\nreally"}])
    ]
    assert run(["jobs", "retry", JOB.id]) == ExitCode.PROBLEM
    out, err = capsys.readouterr()
    assert out == ""
    assert "draftmill: no [31m\n  state: is done really\n  (conflict; problem conflict)\n" in err


def test_a_fault_of_the_service_is_exit_code_1(server: Scripted) -> None:
    server.script = [problem("internal", 500)]
    assert run(["jobs", "show", JOB.id]) == ExitCode.FAULT


def test_nobody_there_is_exit_code_7(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DRAFTMILL_URL", f"http://127.0.0.1:{free_port()}")
    assert run(["jobs", "list", "--json"]) == ExitCode.UNREACHABLE
    assert json.loads(capsys.readouterr().out)["type"] == URN + "client-transport"


@pytest.mark.parametrize("key", [KEY + "\nX", "kéy"])
def test_a_bad_key_is_exit_code_2_and_never_shown(
    server: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    monkeypatch.setenv("DRAFTMILL_API_KEY", key)
    assert run(["jobs", "list", "--json"]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert "DRAFTMILL_API_KEY" in err
    assert key not in out + err
    assert server.seen == []


def test_list_asks_for_no_more_than_it_shows(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    page = {"items": [JOB.model_dump(mode="json")] * 3, "next_cursor": "more"}
    server.script = [document(page)]
    assert run(["jobs", "list", "--limit", "5", "--label", "a=b", "--json"]) == ExitCode.OK
    assert len(json.loads(capsys.readouterr().out)["items"]) == 5
    assert len(server.seen) == 2
    assert run(["jobs", "list"]) == ExitCode.OK
    assert JOB.id in capsys.readouterr().out


def test_download_says_what_came_and_where(
    server: Scripted, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    server.script = Store()
    assert run(["download", JOB.id, "-o", str(tmp_path / "out"), "--json"]) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert shown["received_bytes"] == sum(map(len, FILES.values()))
    assert tree(Path(shown["folder"])) == FILES
    assert run(["download", JOB.id, "-o", str(tmp_path / "out")]) == ExitCode.OK
    assert "4 files" in capsys.readouterr().out


def test_download_warns_of_a_variant_that_failed_a_gate(
    server: Scripted, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = Store()
    found = AcceptanceSummary.of("j0", verdicts.acceptance(Verdict.FAILED))
    store.manifest = store.manifest.model_copy(update={"acceptance": found})
    server.script = store
    assert run(["download", JOB.id, "-o", str(tmp_path / "out"), "--json"]) == ExitCode.OK
    said = capsys.readouterr()
    assert json.loads(said.out)["acceptance"]["verdict"] == "failed"
    assert "FAILED the gate of job j0" in said.err
    assert verdicts.FAILURE in said.err


def test_submit_may_take_a_variant_that_failed_a_gate(server: Scripted) -> None:
    server.script = [document(JOB.model_dump(mode="json"))]
    assert run(["submit", "a/b", "-f", "fp8", "--accept-failed-gate"]) == ExitCode.OK
    assert json.loads(server.seen[-1].body)["accept_failed_gate"] is True


def test_a_refused_preflight_is_one_document_and_exit_code_3(
    server: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = {"type": URN + "unknown-family", "title": "t", "status": 422, "detail": "no family"}
    server.script = [document({"ok": False, "problem": refused})]
    assert run(["preflight", "org/x", "-f", "fp8", "--json"]) == ExitCode.PROBLEM
    out, err = capsys.readouterr()
    assert json.loads(out)["problem"]["detail"] == "no family"
    assert "no family" in err


def test_formats_need_no_service(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["formats", "--json"]) == ExitCode.OK
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(Format)


def test_interrupting_a_watch_leaves_the_job_and_says_how_to_cancel(
    server: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> Iterator[None]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Client, "watch", interrupted)
    for words in (["jobs", "watch", JOB.id], ["submit", "a/b", "-f", "fp8", "--wait"]):
        assert run(words) == ExitCode.INTERRUPTED
        out, err = capsys.readouterr()
        assert out == ""
        assert f"{JOB.id} goes on. To cancel it: draftmill jobs cancel {JOB.id}" in err
    assert not any("cancel" in seen.path for seen in server.seen)


@pytest.mark.parametrize(
    ("command", "module"),
    [("formats", "draftmill.cli.main"), ("formats", "draftmill.client"), ("up", "draftmill_service.up.command")],
)
def test_ctrl_c_while_modules_load_is_quiet(command: str, module: str) -> None:
    code = f"""
import os, signal, sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["draftmill", {command!r}, "--help"]
from draftmill.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, b"", b"")


@pytest.mark.parametrize("words", ["--help", "submit --help", "jobs --help", "jobs watch --help", "download --help"])
def test_help_teaches(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.split()) == ExitCode.OK
    out = capsys.readouterr().out
    assert out.startswith("Usage: draftmill")
    assert "\x1b" not in out


def test_the_help_documents_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    out = capsys.readouterr().out
    for code in ExitCode:
        assert f"\n    {code.value}  " in out
    assert HELP.count("\n") == len(ExitCode) + 1


def test_the_installed_command_prints_no_ansi_when_it_is_not_on_a_terminal(server: Scripted) -> None:
    server.script = Service(stream(event(1)), stream(event(2, "succeeded")))
    command = [str(Path(sys.executable).with_name("draftmill")), "jobs", "watch", JOB.id]
    done = subprocess.run(command, capture_output=True, check=False, env=dict(os.environ), timeout=60)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout + done.stderr
