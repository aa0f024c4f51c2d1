"""API keys: stored hashed in one file that the service reads anew whenever it changes."""

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from draftmill._model import Model
from draftmill.jobs import Instant, Sha256

# 256 random bits need no slow hash: there is nothing to guess.
_TOKEN = re.compile(r"dm_([0-9a-f]{12})_([0-9a-f]{64})")
_NO_HASH = "0" * 64
MAX_NAME = 64


class Scope(StrEnum):
    READ = "read"
    WRITE = "write"
    METRICS = "metrics"


class ApiKey(Model):
    id: str
    name: str
    sha256: Sha256
    """Of the secret part of the token."""
    scopes: tuple[Scope, ...]
    created_at: Instant
    revoked_at: Instant | None = None


class _File(Model):
    keys: tuple[ApiKey, ...] = ()


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Keyring:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._keys: dict[str, ApiKey] = {}

    def list(self) -> tuple[ApiKey, ...]:
        """Every key, the revoked ones too."""
        self._refresh()
        return tuple(self._keys.values())

    def create(self, name: str, scopes: "set[Scope]") -> tuple[ApiKey, str]:
        """A new key and its token `dm_<id>_<secret>`, which is nowhere else and is not stored.

        ValueError for a name that a terminal could not show on a line.
        """
        if not (1 <= len(name) <= MAX_NAME and name.isprintable() and name.strip()):
            raise ValueError(f"a key's name has 1 to {MAX_NAME} printable characters")
        secret = secrets.token_hex(32)
        key = ApiKey(
            id=secrets.token_hex(6),
            name=name,
            sha256=_hash(secret),
            scopes=tuple(sorted(scopes)),
            created_at=datetime.now(UTC),
        )
        with self._locked():
            self._write((*self._read().keys, key))
        return key, f"dm_{key.id}_{secret}"

    def revoke(self, key_id: str) -> ApiKey:
        """KeyError when there is no such key."""
        with self._locked():
            keys = {key.id: key for key in self._read().keys}
            keys[key_id] = keys[key_id].model_copy(update={"revoked_at": datetime.now(UTC)})
            self._write(tuple(keys.values()))
        return keys[key_id]

    def authenticate(self, token: str) -> ApiKey | None:
        """The key of a token, None when it is unknown or revoked. Compares in constant time."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        self._refresh()
        key = self._keys.get(match[1])
        known = hmac.compare_digest(_hash(match[2]), _NO_HASH if key is None else key.sha256)
        return key if known and key is not None and key.revoked_at is None else None

    def get(self, key_id: str) -> ApiKey | None:
        """The key of this id, None when there is none or it was revoked."""
        self._refresh()
        key = self._keys.get(key_id)
        return None if key is None or key.revoked_at is not None else key

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._seen, self._keys = None, {}
            return
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen != self._seen:
            self._keys = {key.id: key for key in self._read().keys}
            self._seen = seen

    def _read(self) -> _File:
        try:
            return _File.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return _File()

    def _write(self, keys: tuple[ApiKey, ...]) -> None:
        # mkstemp makes the file 0600; rename keeps a reader from seeing half of it.
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=".keys-")
        with os.fdopen(handle, "w") as file:
            file.write(_File(keys=keys).model_dump_json(indent=2))
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
