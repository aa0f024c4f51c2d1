"""Sign-in links: each signs one browser in, once.

A ticket is a file of the data directory, so that whoever may read keys there can make one without asking the service,
and taking it is one unlink: of two that try, one succeeds, also over restarts and between processes.
"""

import hashlib
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

TICKET_SECONDS = 3600
SIGN_IN = "/ui/sign-in?ticket="
"""Path that takes a ticket."""


class Tickets:
    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "tickets"

    def issue(self, key_id: str) -> str:
        """A ticket for the key of this id. It is stored as its hash; tickets that are too old are removed."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for old in self._folder.iterdir():
            with suppress(FileNotFoundError):
                if self._too_old(old):
                    old.unlink()
        ticket = secrets.token_urlsafe(32)
        handle = os.open(self._path(ticket), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(key_id)
        return ticket

    def redeem(self, ticket: str) -> str | None:
        """The id of its key; None for one that was used, is too old or never was."""
        path = self._path(ticket)
        try:
            late, key_id = self._too_old(path), path.read_text()
            path.unlink()
        except FileNotFoundError:
            return None
        return None if late else key_id

    def _path(self, ticket: str) -> Path:
        return self._folder / hashlib.sha256(ticket.encode()).hexdigest()

    @staticmethod
    def _too_old(path: Path) -> bool:
        return time.time() - path.stat().st_mtime > TICKET_SECONDS
