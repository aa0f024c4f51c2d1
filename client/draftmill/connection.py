"""Where the service is and with which key: arguments, then the environment, then an embedded service's state file."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from draftmill._model import Model
from draftmill.errors import NoServiceError
from draftmill.jobs import Instant

STATE_FILE = "embedded.json"


class Embedded(Model):
    """What `draftmill up` leaves in its data directory (mode 0600) for clients of the same user."""

    url: str
    api_key: str
    pid: int | None
    """None when the service was stopped."""
    started_at: Instant


@dataclass(frozen=True, slots=True)
class Connection:
    url: str
    """Scheme, host and an optional path prefix, without a trailing slash."""
    api_key: str | None

    def __repr__(self) -> str:
        return f"Connection(url={self.url!r}, api_key={'...' if self.api_key else None})"

    @property
    def is_loopback(self) -> bool:
        host = urlsplit(self.url).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """DRAFTMILL_DATA_DIR, else `draftmill` in the user's XDG data directory."""
    if chosen := environ.get("DRAFTMILL_DATA_DIR"):
        return Path(chosen).expanduser().absolute()
    home = environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "draftmill"


def read_embedded(folder: Path) -> Embedded | None:
    """The embedded service's address, or None where none left one that can be read."""
    try:
        return Embedded.model_validate_json((folder / STATE_FILE).read_bytes(), extra="ignore")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except ValidationError as error:
        raise NoServiceError(f"{folder / STATE_FILE} is damaged; `draftmill up` writes it anew") from error


def find_connection(
    url: str | None = None, api_key: str | None = None, environ: Mapping[str, str] = os.environ
) -> Connection:
    """Raises NoServiceError when nothing names a service. A key found in the state file goes to that service alone."""
    url = url or environ.get("DRAFTMILL_URL")
    api_key = api_key or environ.get("DRAFTMILL_API_KEY")
    if url is None or api_key is None:
        embedded = read_embedded(data_dir(environ))
        if embedded is not None and url in (None, embedded.url):
            if embedded.pid is None and url is None:
                raise NoServiceError(f"the service in {data_dir(environ)} is stopped; `draftmill up` starts it again")
            url, api_key = embedded.url, api_key or embedded.api_key
    if url is None:
        raise NoServiceError(
            "no service is known: run `draftmill up`, or set DRAFTMILL_URL and DRAFTMILL_API_KEY "
            f"(no {STATE_FILE} in {data_dir(environ)})"
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NoServiceError(f"the service's URL must be http:// or https:// with a host, not {url!r}")
    return Connection(url.rstrip("/"), api_key)
