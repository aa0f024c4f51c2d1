"""The command line against the whole service: every outcome, as a person or a script sees it."""

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from draftmill.problems import URN
from tests.e2e.conftest import World, hurry
from tests.e2e.embedded import DRAFTMILL, Up, environment
from tests.support import eventually

PLAIN = re.compile(r"\d\d:\d\d:\d\d (state|stage|attempt|progress|log) +\S")


def submitted(up: Up, *words: str) -> str:
    done = up.run("submit", *words, "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["id"])


def shown(up: Up, job: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(up.run("jobs", "show", job, "--json").stdout)
    return document


def pulling(up: Up, job: str) -> bool:
    attempts = shown(up, job)["attempts"]
    return bool(attempts and attempts[0]["stages"])


def test_preflight_submit_inspect_download(up: Up, world: World, tmp_path: Path) -> None:
    repo = world.repo()
    told = json.loads(up.run("preflight", repo.id, "-f", "fp8", "--json").stdout)
    assert told["ok"]
    assert told["plan"]["family"] == "eagle3"

    done = up.run("submit", repo.id, "-f", "fp8", "--label", "team=e2e", "--wait", timeout=280)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert [line for line in done.stderr.splitlines() if PLAIN.match(line) and "succeeded" in line]
    job = done.stdout.split()[1]
    assert "state      succeeded" in done.stdout

    listed = json.loads(up.run("jobs", "list", "--label", "team=e2e", "--family", "eagle3", "--json").stdout)
    assert [item["id"] for item in listed["items"]] == [job]
    plan = json.loads(up.run("jobs", "plan", job, "--json").stdout)
    assert plan == told["plan"]
    assert "passed: " in up.run("jobs", "verify", job).stdout

    out = tmp_path / "variant"
    got = json.loads(up.run("download", job, "-o", str(out), "--json").stdout)
    assert {file["path"] for file in got["files"]} == {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    assert json.loads((out / "config.json").read_text())["quantization_config"]["quant_algo"] == "FP8"
    assert json.loads(up.run("download", job, "-o", str(out), "--json").stdout)["received_bytes"] == 0

    again = up.run("submit", repo.id, "-f", "fp8", "--wait", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["cached"]


@pytest.mark.parametrize(("family", "slug"), [("medusa", "family-not-quantizable"), (None, "not-found-or-private")])
def test_a_job_that_fails_is_exit_code_4_with_its_problem(up: Up, world: World, family: str | None, slug: str) -> None:
    name = world.repo(family).id if family else "org/nothing-here"
    done = up.run("submit", name, "-f", "fp8", "--wait", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["problem"]["type"] == URN + slug


def test_a_refused_preflight_is_exit_code_3(up: Up, world: World) -> None:
    done = up.run("preflight", world.repo("medusa").id, "-f", "fp8")
    assert done.returncode == 3
    assert "family-not-quantizable" in done.stderr


def test_paths_under_an_allowed_root_alone(up: Up, world: World, tmp_path: Path) -> None:
    assert up.run("submit", str(world.checkpoint()), "-f", "fp8_pc_pt", "--wait", timeout=280).returncode == 0
    done = up.run("submit", str(tmp_path), "-f", "fp8", "--wait")
    assert done.returncode == 4
    assert "path-not-allowed" in done.stdout


def test_cancel_is_exit_code_5_for_the_one_who_watches(up: Up, world: World) -> None:
    job = submitted(up, world.repo(slow=True).id, "-f", "fp8")
    eventually(lambda: pulling(up, job), timeout=60)
    assert up.run("jobs", "cancel", job).returncode == 0
    watched = up.run("jobs", "watch", job, "--json")
    assert watched.returncode == 5
    assert json.loads(watched.stdout.splitlines()[-1])["data"]["state"] == "canceled"
    assert up.run("jobs", "retry", job).returncode == 0
    assert up.run("jobs", "cancel", job).returncode == 0


def test_a_deadline_that_passes_is_exit_code_6(up: Up, world: World) -> None:
    done = up.run("submit", world.repo(slow=True).id, "-f", "fp8", "--deadline", "1s", "--wait", "--json")
    assert done.returncode == 6
    assert json.loads(done.stdout)["reason"] == "deadline_exceeded"


@pytest.mark.parametrize("how", ["submit", "watch"])
def test_ctrl_c_stops_watching_and_not_the_job(up: Up, world: World, how: str) -> None:
    repo = world.repo(slow=True)
    key = ("--idempotency-key", f"ctrl-c-{how}")
    job = submitted(up, repo.id, "-f", "fp8", *key)
    eventually(lambda: pulling(up, job), timeout=60)
    # The same key again: this command watches the job that is there.
    words = ("submit", repo.id, "-f", "fp8", *key, "--wait") if how == "submit" else ("jobs", "watch", job)
    environ = environment(DRAFTMILL_DATA_DIR=str(up.data_dir), PYTHONUNBUFFERED="1")
    pipe = subprocess.PIPE
    with subprocess.Popen([DRAFTMILL, *words], stdout=pipe, stderr=pipe, text=True, env=environ) as watching:
        assert watching.stderr is not None
        seen = ""
        while "pull running" not in seen:
            seen += watching.stderr.readline()
        watching.send_signal(signal.SIGINT)
        _, rest = watching.communicate(timeout=30)
    assert watching.returncode == 130
    assert f"{job} goes on. To cancel it: draftmill jobs cancel {job}" in rest
    assert shown(up, job)["state"] == "running"
    hurry(repo)
    assert up.run("jobs", "watch", job).returncode == 0


def on_a_terminal(words: Sequence[str], environ: dict[str, str]) -> tuple[int, str]:
    """Exit code and everything that a terminal got to see."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(words, stdin=terminal, stdout=terminal, stderr=terminal, env=environ) as running:
        os.close(terminal)
        seen = b""
        # Linux answers EIO when the last writer has gone.
        while True:
            try:
                seen += os.read(controller, 65536)
            except OSError:
                break
    os.close(controller)
    return running.returncode, seen.decode()


def test_a_terminal_gets_a_bar_and_json_does_not(up: Up, world: World, tmp_path: Path) -> None:
    job = submitted(up, world.repo().id, "-f", "w4a16_nvfp4")
    environ = environment(DRAFTMILL_DATA_DIR=str(up.data_dir), TERM="xterm-256color", COLUMNS="120")
    code, seen = on_a_terminal([DRAFTMILL, "jobs", "watch", job], environ)
    assert code == 0
    assert "\x1b[" in seen
    assert "state      succeeded" in seen
    download = [DRAFTMILL, "download", job, "-o", str(tmp_path / "out")]
    code, seen = on_a_terminal(download, environ)
    assert code == 0
    assert "every SHA-256 right" in seen
    code, seen = on_a_terminal([*download, "--json"], environ)
    assert "\x1b" not in seen
    assert json.loads(seen)["received_bytes"] == 0
