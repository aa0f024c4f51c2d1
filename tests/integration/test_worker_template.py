"""The template and the supervisor's hold on its forks, without Redis."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from draftmill.formats import Format
from draftmill.jobs import JobSpec, RepoSource
from draftmill.states import Stage
from draftmill_worker import process
from draftmill_worker.runner import StageProcess, TemplateDownError
from draftmill_worker.stage import StageRequest, StageResult
from tests.support import eventually

SMALL = "tests.integration.worker_stages.small"


@pytest.fixture
def template(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process.become_subreaper()
    # What other tests of this process run is theirs.
    before = set(psutil.Process().children())
    running = subprocess.Popen([sys.executable, "-m", "draftmill_worker.template", str(tmp_path / "t"), SMALL])
    yield running
    running.kill()
    running.wait()
    for left in set(psutil.Process().children()) - before:
        process.kill_tree(left, 5.0)
        with contextlib.suppress(psutil.NoSuchProcess):
            left.wait(5.0)


def _request(folder: Path, **labels: str) -> Path:
    request = StageRequest(
        job="j" + "0" * 26,
        attempt=1,
        stage=Stage.QUANTIZE,
        data_dir=folder,
        spec=JobSpec(source=RepoSource(repo="a/b"), format=Format.FP8, labels=labels),
    )
    request.folder.mkdir(parents=True, exist_ok=True)
    path = request.folder / "request.json"
    path.write_text(request.model_dump_json())
    return path


def _start(folder: Path, act: str, secrets: dict[str, str] | None = None) -> StageProcess:
    request = _request(folder, quantize=act)
    return StageProcess(folder / "t", request, secrets=secrets or {}, patience=20.0)


def _messages(stage: StageProcess) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    while not messages or "ended" not in messages[-1]:
        message = stage.receive(0.1)
        if message is not None:
            messages.append(message)
    return messages


def _pid(stage: StageProcess) -> int:
    message = eventually(lambda: stage.receive(0.1))
    assert message is not None
    return int(message["started"])


def _result(folder: Path) -> StageResult:
    path = _request(folder).with_name("result.json")
    return StageResult.model_validate_json(path.read_bytes())


def test_result_and_reports(tmp_path: Path, template: "subprocess.Popen[bytes]") -> None:
    with _start(tmp_path, "progress") as stage:
        messages = _messages(stage)
    assert messages[-1] == {"ended": {"status": 0, "killed": False, "strays": 0}}
    progress = [message["progress"]["done"] for message in messages if "progress" in message]
    assert progress[0] == 0
    assert progress[-1] == 1000
    assert len(progress) < 10, "at most five a second"
    assert {"log": {"level": "warning", "message": "a thousand of them"}} in messages
    result = _result(tmp_path)
    assert result.problem is None
    assert result.value["stage"] == "quantize"
    log = (_request(tmp_path).parent / "log.jsonl").read_text()
    assert json.loads(log.splitlines()[-1])["message"] == "a thousand of them"


@pytest.mark.parametrize(("act", "slug"), [("problem", "shape-mismatch"), ("bug", "internal"), ("full", "disk-budget")])
def test_a_failure_is_a_result(tmp_path: Path, template: "subprocess.Popen[bytes]", act: str, slug: str) -> None:
    with _start(tmp_path, act) as stage:
        assert _messages(stage)[-1]["ended"]["status"] == 0
    problem = _result(tmp_path).problem
    assert problem is not None
    assert problem.slug == slug
    assert "Traceback" not in problem.model_dump_json()


@pytest.mark.parametrize(("act", "status"), [("crash", -signal.SIGKILL), ("exit", 3)])
def test_a_death_is_told(tmp_path: Path, template: "subprocess.Popen[bytes]", act: str, status: int) -> None:
    with _start(tmp_path, act) as stage:
        assert _messages(stage)[-1]["ended"]["status"] == status


def test_what_a_stage_leaves_is_killed(tmp_path: Path, template: "subprocess.Popen[bytes]") -> None:
    with _start(tmp_path, "daemons") as stage:
        assert _messages(stage)[-1]["ended"]["strays"] == 2
    assert psutil.Process(template.pid).children(recursive=True) == []


@pytest.mark.parametrize("leave", ["kill", "close", "die"])
def test_a_stage_dies_with_all_it_started(tmp_path: Path, template: "subprocess.Popen[bytes]", leave: str) -> None:
    """By request, by a closed connection, by the supervisor's death."""

    def living() -> set[int]:
        return {child.pid for child in psutil.Process().children(recursive=True) if process.alive(child)}

    before = living()

    def others() -> set[int]:
        return living() - before

    if leave == "die":
        pid = os.fork()
        if pid == 0:
            with _start(tmp_path, "daemons-hang") as stage:
                while True:
                    stage.receive(1.0)
        # Itself, the stage and its two daemons.
        eventually(lambda: len(others()) == 4)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    else:
        with _start(tmp_path, "daemons-hang") as stage:
            _pid(stage)
            eventually(lambda: len(others()) == 3)
            if leave == "kill":
                assert stage.kill(2.0)
                assert others() == set(), "nothing is left when kill says so"
    eventually(lambda: not others(), timeout=2.0)
    with _start(tmp_path, "") as stage:
        assert _messages(stage)[-1]["ended"]["status"] == 0, "the template serves on"


def test_a_stage_dies_with_the_template(tmp_path: Path, template: "subprocess.Popen[bytes]") -> None:
    with _start(tmp_path, "hang") as stage:
        hanging = psutil.Process(_pid(stage))
        template.kill()
        with pytest.raises(TemplateDownError):
            _messages(stage)
        eventually(lambda: not process.alive(hanging), timeout=2.0)


def test_a_stage_that_floods_loses_reports_not_its_end(tmp_path: Path, template: "subprocess.Popen[bytes]") -> None:
    with _start(tmp_path, "flood") as stage:
        _pid(stage)
        eventually((_request(tmp_path).with_name("result.json")).exists)
        assert _messages(stage)[-1]["ended"]["status"] == 0


def test_a_stopped_template_does_not_keep_a_stage_alive(tmp_path: Path, template: "subprocess.Popen[bytes]") -> None:
    with _start(tmp_path, "hang") as stage:
        hanging = psutil.Process(_pid(stage))
        template.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        assert stage.kill(0.5)
        assert time.monotonic() - started < 1.5
        assert not process.alive(hanging)


def test_secrets_reach_the_stage_and_nothing_else(tmp_path: Path, template: "subprocess.Popen[bytes]") -> None:
    with _start(tmp_path, "token", {"HF_TOKEN": "hf_secret"}) as stage:
        assert {"log": {"level": "info", "message": "HF_TOKEN is set"}} in _messages(stage)
    with _start(tmp_path, "token") as stage:
        assert {"log": {"level": "info", "message": "HF_TOKEN is not set"}} in _messages(stage)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"hf_secret" not in path.read_bytes(), path


def test_a_template_that_never_comes_is_told(tmp_path: Path) -> None:
    stage = StageProcess(tmp_path / "t", _request(tmp_path), secrets={}, patience=0.2)
    with stage, pytest.raises(TemplateDownError):
        _messages(stage)
