"""How patient a pull is, and how much it may bring. Nothing in here is secret: the token stays in the environment."""

from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_ENDPOINT = "https://huggingface.co"
TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that hold for every source."""

    max_files: int = 1000
    """Files taken from one source."""
    max_bytes: int = 1 << 40
    """Bytes taken from one source."""
    max_sidecar_bytes: int = 256 << 20
    """Bytes of one file that is not a weight file."""
    disk_budget_bytes: int | None = None
    """Bytes that everything under `sources/` may take together, this pull counted in."""
    reserve_bytes: int = 64 << 20
    """Bytes that stay free on the volume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings(Limits):
    endpoint: str = DEFAULT_ENDPOINT
    connect_seconds: float = 10.0
    answer_seconds: float = 30.0
    """Longest silence while the Hub answers a question about a repository."""
    stall_seconds: float = 60.0
    """Longest silence within a download; over the same time at least `stall_bytes` must arrive."""
    stall_bytes: int = 1024
    tries: int = 5
    """Failures in a row before a request is given up. A download that gained bytes starts counting again."""
    backoff_seconds: float = 1.0
    """Wait after the first failure; it doubles with each one that follows."""
    max_backoff_seconds: float = 30.0
    max_wait_seconds: float = 300.0
    """Longest time spent waiting between the tries of one request, a server's Retry-After included."""
    connections: int = 4
    """Files downloaded, or headers read, at the same time."""
    max_listed: int = 100_000
    """Entries of a repository's listing."""
    max_pages: int = 200

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise ValueError("the Hub endpoint must be an http or https URL without user information")
        object.__setattr__(self, "endpoint", self.endpoint.rstrip("/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings(Limits):
    link: bool = False
    """Hard-link weight files instead of copying them. The source's files must then never be written in place."""
