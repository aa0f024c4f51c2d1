"""The embedded service: Redis, the API and one worker on this machine, in one data directory."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import redis

from draftmill._environment import read_settings
from draftmill_service.ledger.address import DEFAULT_URL
from draftmill_service.settings import ServiceSettings
from draftmill_service.up import embedded_redis, state
from draftmill_service.up.child import Child, Command
from draftmill_service.up.errors import UpError
from draftmill_service.up.supervisor import Say, Supervisor
from draftmill_service.web.tickets import SIGN_IN, Tickets

# The Hub's token is for the worker's pull stage; a client's key is for nobody's child.
_HUB_SECRETS = ("HF_TOKEN", "HF_TOKEN_FILE", "HUGGING_FACE_HUB_TOKEN")
_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    data_dir: Path
    port: int
    redis_url: str | None
    """A Redis that runs elsewhere; None for one of our own."""
    allowed_roots: Sequence[Path]
    environ: Mapping[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def logs(self) -> Path:
        return self.data_dir / "logs"

    @property
    def worker_grace(self) -> float:
        """Seconds in which the worker drains and leaves. Its own check has refused what is no number."""
        return float(self.environ.get("DRAFTMILL_DRAIN_SECONDS") or 8.0) + 12.0

    def environment(self, redis_url: str, *, hub: bool) -> dict[str, str]:
        """What a child sees."""
        hidden = ("DRAFTMILL_API_KEY", "DRAFTMILL_API_KEY_FILE", *(() if hub else _HUB_SECRETS))
        roots = [self.environ.get("DRAFTMILL_ALLOWED_ROOTS", ""), *map(str, self.allowed_roots)]
        return {name: value for name, value in self.environ.items() if name not in hidden} | {
            "DRAFTMILL_REDIS_URL": redis_url,
            "DRAFTMILL_DATA_DIR": str(self.data_dir),
            "DRAFTMILL_HOST": "127.0.0.1",
            "DRAFTMILL_PORT": str(self.port),
            "DRAFTMILL_ALLOWED_ROOTS": os.pathsep.join(filter(None, roots)),
            "PYTHONUNBUFFERED": "1",
        }


def run(plan: Plan, say: Say, ready: Callable[[str, str], None]) -> None:
    """Runs until SIGINT or SIGTERM.

    `ready` gets the embedded Redis' description and a link that signs one browser in, once everything answers.

    Raises SettingsError or UpError before anything was started when the environment is wrong.
    """
    keys_file = read_settings(partial(ServiceSettings, data_dir=plan.data_dir)).keys_file
    _check_worker(plan)
    plan.logs.mkdir(exist_ok=True)
    key = state.own_key(plan.data_dir, keys_file)
    with Supervisor(say) as supervisor:
        redis_url, described = _start_redis(plan, supervisor)
        if redis_url is None:
            return
        api = Child(_python(plan, "api", "draftmill_service.cli", redis_url, hub=False, grace_seconds=10), plan.logs)
        supervisor.add(api)
        worker = _python(plan, "worker", "draftmill_worker.cli", redis_url, hub=True, grace_seconds=plan.worker_grace)
        supervisor.add(Child(worker, plan.logs))
        with httpx.Client(trust_env=False, timeout=2.0) as http:
            if not supervisor.wait_for("the API", lambda: _is_ready(http, plan.url), api, _START_SECONDS):
                return
        state.write_state(plan.data_dir, plan.url, key, os.getpid())
        ready(described, plan.url + SIGN_IN + Tickets(plan.data_dir).issue(state.key_id(key)))
        supervisor.run()
        say("stopping; a running job is handed back and goes on at the next start (once more to stop at once)")
    state.write_state(plan.data_dir, plan.url, key, None)


def _start_redis(plan: Plan, supervisor: Supervisor) -> tuple[str | None, str]:
    """The URL and a description for people; no URL when told to stop meanwhile."""
    if plan.redis_url is not None:
        parts = urlsplit(plan.redis_url)
        where = f"{parts.hostname}:{parts.port or 6379} (from the environment)"
        if not _answers(plan.redis_url):
            raise UpError(f"no Redis answers at {where}: see DRAFTMILL_REDIS_URL and REDIS_URL")
        return plan.redis_url, where
    server = embedded_redis.configure(plan.data_dir)
    child = Child(Command("redis", server.arguments, plan.environment(server.url, hub=False), 20.0), plan.logs)
    supervisor.add(child)
    # Reading a long append-only file takes its time.
    started = supervisor.wait_for("Redis", lambda: _answers(server.url), child, 10 * _START_SECONDS)
    return (server.url if started else None), f"127.0.0.1:{server.port} ({server.binary})"


def _python(plan: Plan, name: str, module: str, redis_url: str, *, hub: bool, grace_seconds: float) -> Command:
    arguments = (sys.executable, "-m", module, "run")
    return Command(name, arguments, plan.environment(redis_url, hub=hub), grace_seconds)


def _check_worker(plan: Plan) -> None:
    """Raises UpError with what the worker says against its settings; only the worker itself knows them."""
    environ = plan.environment(plan.redis_url or DEFAULT_URL, hub=True)
    command = (sys.executable, "-m", "draftmill_worker.cli", "check")
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=_START_SECONDS)
    if done.returncode != 0:
        raise UpError(done.stderr.strip().rpartition("\n")[2] or f"the worker's check ended with {done.returncode}")


def _answers(url: str) -> bool:
    with suppress(redis.RedisError), redis.Redis.from_url(url, socket_timeout=1.0, retry=None) as client:
        return bool(client.ping())
    return False


def _is_ready(http: httpx.Client, url: str) -> bool:
    with suppress(httpx.TransportError):
        return http.get(f"{url}/readyz").status_code == httpx.codes.OK
    return False
