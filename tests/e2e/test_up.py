"""`draftmill up`: it keeps its jobs over stops and kills, lets nobody else in, and leaves nothing behind."""

import json
import re
import signal
import socket
import stat
import subprocess
from pathlib import Path

import psutil
import pytest
import redis

from draftmill import Client, Format, Job, JobSpec, JobState, RepoSource
from draftmill.connection import read_embedded
from draftmill.states import Stage, StageState
from tests.e2e.conftest import TOKEN, World, hurry
from tests.e2e.embedded import DRAFTMILL, Up, environment
from tests.integration.test_drain import spec
from tests.redis_server import RedisServer, free_port
from tests.support import eventually


def submit(client: Client, repo: str) -> Job:
    return client.submit(JobSpec(source=RepoSource(repo=repo), format=Format.FP8_PC_PT))


def stage_runs(client: Client, job: Job, stage: Stage) -> bool:
    attempts = client.get(job).attempts
    return bool(attempts) and any(
        record.name is stage and record.state is StageState.RUNNING for record in attempts[-1].stages
    )


def test_a_second_start_finds_its_jobs_again(world: World, tmp_path: Path) -> None:
    repo = world.repo()
    with Up(tmp_path / "data", world.url) as up:
        up.wait_until_warm()
        with up.client() as client:
            job = client.wait(submit(client, repo.id))
            assert job.state is JobState.SUCCEEDED, job.problem
            waiting = submit(client, world.repo(slow=True).id)
            eventually(lambda: stage_runs(client, waiting, Stage.PULL), timeout=60)
        key = read_embedded(up.data_dir)
        assert up.stop() == 0
    stopped = up.run("jobs", "list")
    assert stopped.returncode == 7
    assert "is stopped; `draftmill up` starts it again" in stopped.stderr

    for slow in world.hub.repos.values():
        hurry(slow)
    with Up(tmp_path / "data", world.url) as up, up.client() as client:
        again = read_embedded(up.data_dir)
        assert key is not None
        assert again is not None
        assert again.api_key == key.api_key
        assert client.get(job) == job
        client.download(job, tmp_path / "out")
        # The job that ran when it stopped was handed back, and goes on.
        ended = client.wait(waiting)
        assert ended.state is JobState.SUCCEEDED, ended.problem
        assert [attempt.outcome for attempt in ended.attempts] == ["interrupted", "succeeded"]
        cached = client.wait(submit(client, repo.id))
        assert cached.cached
        assert cached.resolved_spec == job.resolved_spec


@pytest.mark.slow
@pytest.mark.parametrize("stage", Stage)
def test_sigterm_in_each_stage_hands_the_job_back(tmp_path: Path, stage: Stage) -> None:
    settings = {"DRAFTMILL_STAGES": "tests.integration.worker_stages.small", "DRAFTMILL_DRAIN_SECONDS": "0.5"}
    with Up(tmp_path / "data", None, **settings) as up, up.client() as client:
        job = client.submit(spec(**{stage.value: "daemons-hang-once"}))
        eventually(lambda: stage_runs(client, job, stage), timeout=60)
        assert up.stop(signal.SIGTERM) == 0
    with Up(tmp_path / "data", None, **settings) as up, up.client() as client:
        ended = client.wait(job)
        assert ended.state is JobState.SUCCEEDED
        assert [attempt.outcome for attempt in ended.attempts] == ["interrupted", "succeeded"]
        last = ended.attempts[0].stages[-1]
        assert (last.name, last.state) == (stage, StageState.INTERRUPTED)


@pytest.mark.parametrize("name", ["api", "redis", "worker"])
def test_kill_9_in_the_middle_of_a_job_loses_nothing(up: Up, world: World, name: str) -> None:
    repo = world.repo(slow=True)
    with up.client() as client:
        job = submit(client, repo.id)
        queued = submit(client, world.repo().id)
        eventually(lambda: stage_runs(client, job, Stage.PULL), timeout=60)
        before = up.child(name)
        up.kill(name)
        eventually(lambda: not before.is_running(), timeout=10)
        hurry(repo)
        # Watching goes over the gap.
        for one in (job, queued):
            ended = client.wait(one)
            assert ended.state is JobState.SUCCEEDED, ended.problem
        assert up.child(name).pid != before.pid
        attempts = [attempt.outcome for attempt in client.get(job).attempts]
        assert attempts == (["lost", "succeeded"] if name == "worker" else ["succeeded"])
        variants = {client.artifacts(one).variant for one in (job, queued)}
        assert variants <= {folder.name for folder in (up.data_dir / "variants").iterdir()}


def test_nothing_outlives_kill_9_of_up_itself(world: World, tmp_path: Path) -> None:
    with Up(tmp_path / "data", world.url) as up:
        below = psutil.Process(up.process.pid).children(recursive=True)
        assert len(below) >= 3
        up.process.kill()
        up.process.wait(timeout=10)
        alive = psutil.wait_procs(below, timeout=10)[1]
        assert not alive
    with Up(tmp_path / "data", world.url) as up:
        assert up.run("jobs", "list", "--json").returncode == 0


def test_a_second_instance_is_refused_with_the_firsts_process_id(up: Up) -> None:
    done = up.run("up", "--port", "0")
    assert done.returncode == 2
    assert f"already runs in {up.data_dir} (process {up.process.pid})" in done.stderr
    assert done.stdout == ""


def test_a_taken_port_and_a_missing_root_are_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for words, said in (
            (["--port", port], f"port {port} is taken"),
            (["--allow-root", str(tmp_path / "no"), "--port", "0"], "no such folder"),
        ):
            command = [DRAFTMILL, "up", "--data-dir", str(tmp_path), *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=60)
            assert done.returncode == 2
            assert said in done.stderr
    assert not (tmp_path / "redis").exists()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DRAFTMILL_REDIS_URL", "garbage"),
        ("REDIS_URL", "garbage"),
        ("DRAFTMILL_MAX_ATTEMPTS", "0"),
        ("DRAFTMILL_LEASE_SECONDS", "abc"),
        ("DRAFTMILL_HUB_ENDPOINT", "garbage"),
        ("DRAFTMILL_DISK_BUDGET_BYTES", "-1"),
    ],
)
def test_a_bad_setting_is_named_before_anything_starts(tmp_path: Path, variable: str, value: str) -> None:
    command = [DRAFTMILL, "up", "--port", "0", "--data-dir", str(tmp_path)]
    environ = environment(**{variable: value})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=60)
    assert done.returncode == 2
    assert f"{variable}: " in done.stderr.splitlines()[-1]
    assert {path.name for path in tmp_path.iterdir()} <= {"up.lock"}


def test_secrets_are_the_users_alone_and_each_process_sees_its_own(up: Up) -> None:
    for name in ("embedded.json", "keys.json", "redis/redis.conf"):
        assert stat.S_IMODE((up.data_dir / name).stat().st_mode) == 0o600
    assert up.child("worker").environ()["HF_TOKEN"] == TOKEN
    for name in ("api", "redis"):
        assert "HF_TOKEN" not in up.child(name).environ()
    key = read_embedded(up.data_dir)
    assert key is not None
    for log in (up.data_dir / "logs").iterdir():
        text = log.read_text()
        assert key.api_key not in text
        assert TOKEN not in text


def test_redis_is_durable_private_and_on_the_loopback(up: Up) -> None:
    url = up.child("api").environ()["DRAFTMILL_REDIS_URL"]
    with redis.Redis.from_url(url, decode_responses=True) as client:
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        port = int(client.config_get("port")["port"])
    with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    for name in ("redis", "api", "worker"):
        for process in (up.child(name), *up.child(name).children(recursive=True)):
            listening = [one.laddr.ip for one in process.net_connections() if one.status == psutil.CONN_LISTEN]
            assert set(listening) <= {"127.0.0.1"}


def test_a_redis_of_ones_own_is_used_and_left_running(world: World, tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    with Up(tmp_path / "data", world.url, REDIS_URL=server.url) as up:
        assert {process.name() for process in psutil.Process(up.process.pid).children()}.isdisjoint({"valkey-server"})
        assert up.run("submit", "org/x", "-f", "fp8").returncode == 0
        assert up.stop(signal.SIGTERM) == 0
    assert not (tmp_path / "data" / "redis").exists()
    with redis.Redis.from_url(server.url) as client:
        assert list(client.scan_iter("draftmill:*"))
    server.stop()


def test_a_redis_that_does_not_answer_is_said_without_its_password(tmp_path: Path) -> None:
    command = [DRAFTMILL, "up", "--port", "0", "--data-dir", str(tmp_path)]
    environ = environment(REDIS_URL=f"redis://:pass-word@127.0.0.1:{free_port()}/0")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=60)
    assert done.returncode == 2
    assert "no Redis answers at 127.0.0.1:" in done.stderr
    assert "pass-word" not in done.stderr


def test_people_get_urls_and_how_to_go_on(world: World, tmp_path: Path) -> None:
    command = [DRAFTMILL, "up", "--port", "0", "--data-dir", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment()) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        said = ""
        while "Ready." not in said:
            line = running.stdout.readline()
            assert line, running.communicate()[1]
            said += line
        running.send_signal(signal.SIGINT)
        said += running.stdout.read()
        notes = running.stderr.read()
    assert running.returncode == 0
    assert re.search(r"^open     http://127\.0\.0\.1:\d+/ui/sign-in\?ticket=\S{20}", said, re.MULTILINE)
    for label in ("API      http://127.0.0.1:", "OpenAPI  http", "Redis    127.0.0.1:", f"data     {tmp_path}"):
        assert label in said
    assert f"DRAFTMILL_DATA_DIR='{tmp_path}'" in said
    assert notes.splitlines()[-1] == "stopped"
    assert json.loads((tmp_path / "embedded.json").read_text())["pid"] is None
    assert {log.name for log in (tmp_path / "logs").iterdir()} == {"api.log", "redis.log", "worker.log"}
