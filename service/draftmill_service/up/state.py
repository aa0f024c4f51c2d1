"""What an embedded service keeps in its data directory: the lock of the one instance, its key, its address."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from draftmill.connection import STATE_FILE, Embedded, read_embedded
from draftmill.errors import NoServiceError
from draftmill_service.keyring import Keyring, Scope
from draftmill_service.up.errors import UpError

KEY_NAME = "embedded"


@contextmanager
def only_instance(data_dir: Path) -> Iterator[None]:
    """Holds the data directory's lock. Raises UpError, naming who has it, when another instance does."""
    with (data_dir / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise UpError(f"Draftmill already runs in {data_dir} (process {lock.read().strip()})") from None
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        yield


def _previous(data_dir: Path) -> Embedded | None:
    try:
        return read_embedded(data_dir)
    except NoServiceError:
        return None


def own_key(data_dir: Path, keys_file: Path) -> str:
    """The token of the key that this data directory's clients use: the one from the last start while it is valid."""
    keyring = Keyring(keys_file)
    previous = _previous(data_dir)
    if previous is not None and keyring.authenticate(previous.api_key) is not None:
        return previous.api_key
    for key in keyring.list():
        if key.name == KEY_NAME and key.revoked_at is None:
            keyring.revoke(key.id)
    return keyring.create(KEY_NAME, set(Scope))[1]


def key_id(token: str) -> str:
    """Id of a token's key, which the token names: `dm_<id>_<secret>`."""
    return token.split("_")[1]


def write_state(data_dir: Path, url: str, api_key: str, pid: int | None) -> None:
    """Replaces the state file (mode 0600) whole. `pid` None says that the service is stopped."""
    state = Embedded(url=url, api_key=api_key, pid=pid, started_at=datetime.now(UTC))
    draft = data_dir / f".{STATE_FILE}"
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(state.model_dump_json() + "\n")
    draft.replace(data_dir / STATE_FILE)
