"""Where the service is and with which key: arguments, then the environment, then an embedded service's state file."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from draftmill._environment import secret
from draftmill._model import Model
from draftmill.errors import NoServiceError, SettingsError
from draftmill.jobs import Instant

STATE_FILE = "embedded.json"
# What a header can hold.
_KEY = re.compile(r"[\x21-\x7e]+")


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
    """A key found in the state file goes to that service alone; white space around a URL or a key is dropped.

    Raises NoServiceError when nothing names a service, SettingsError when what was given cannot be a URL or a key.
    """
    url = (url or environ.get("DRAFTMILL_URL", "")).strip() or None
    api_key = (api_key or "").strip() or secret("DRAFTMILL_API_KEY", environ)
    _check_key(api_key)
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
    _check_url(url)
    return Connection(url.rstrip("/"), api_key)


def _check_key(api_key: str | None) -> None:
    if api_key is not None and not _KEY.fullmatch(api_key):
        raise SettingsError(
            "the API key in DRAFTMILL_API_KEY is not one: it has a blank, or a character that is not printable ASCII"
        )


def _check_url(url: str) -> None:
    if "@" in url:
        # They would replace the key, and would be in every message that names the service.
        raise SettingsError("the service's URL in DRAFTMILL_URL must hold no `@`: the key goes to DRAFTMILL_API_KEY")
    if not url.isprintable() or " " in url:
        raise SettingsError("the service's URL in DRAFTMILL_URL has a blank or a control character")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise SettingsError(f"the service's URL in DRAFTMILL_URL is not one: {error}") from error
    if not usable:
        raise SettingsError(f"the service's URL in DRAFTMILL_URL must be http:// or https:// with a host, not {url!r}")
