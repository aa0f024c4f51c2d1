"""Sessions of browsers: a signed cookie that names an API key, and a token that a foreign page cannot know.

Nothing is kept on the service's side but one secret in the data directory, so that sessions outlast a restart and hold
for every process of the service. The key is looked up at each request: revoking it ends its sessions.
"""

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from itsdangerous import BadSignature, TimestampSigner

SESSION_SECONDS = 7 * 24 * 3600
SECRET = "web.secret"  # noqa: S105 (its file's name)


class Session(NamedTuple):
    key_id: str
    csrf: str
    """To be sent with every form of this session."""


class Sessions:
    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / SECRET

    @property
    def cookie_name(self) -> str:
        """Of this service: browsers send cookies to every port of a host, and several services may run on one."""
        return "draftmill_" + hashlib.sha256(b"name" + self._secret).hexdigest()[:12]

    def start(self, key_id: str) -> str:
        """The cookie's value for a browser that showed the key of this id."""
        return self._signer.sign(f"{key_id}.{secrets.token_hex(16)}").decode()

    def read(self, cookie: str) -> Session | None:
        """None for a cookie that is not ours, was changed, or is too old."""
        try:
            value = self._signer.unsign(cookie, max_age=SESSION_SECONDS)
        except BadSignature:
            return None
        key_id = value.partition(b".")[0].decode()
        return Session(key_id, hmac.new(self._secret, b"csrf" + value, hashlib.sha256).hexdigest())

    @cached_property
    def _signer(self) -> TimestampSigner:
        return TimestampSigner(self._secret, salt="draftmill.session", digest_method=hashlib.sha256)

    @cached_property
    def _secret(self) -> bytes:
        # Whoever links it first wins; a reader never sees half of it.
        if not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft = self._path.with_name(f".{SECRET}-{secrets.token_hex(6)}")
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(32))
            with suppress(FileExistsError):
                os.link(draft, self._path)
            draft.unlink()
        return self._path.read_bytes()
