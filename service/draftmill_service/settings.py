"""The service's settings, read once from the environment."""

from pathlib import Path
from typing import Self

from pydantic import ByteSize, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from draftmill.batches import MAX_RUNNING
from draftmill_service.ledger.address import RedisUrl, configured_url


class ServiceSettings(BaseSettings):
    # A compose file hands on variables that nobody set as empty ones.
    model_config = SettingsConfigDict(
        env_prefix="DRAFTMILL_", frozen=True, extra="ignore", allow_inf_nan=False, env_ignore_empty=True
    )

    redis_url: RedisUrl = Field(default_factory=configured_url, validate_default=True, repr=False)
    """Ledger and broker. It may hold a password, and may come by a file."""
    data_dir: Path = Path("~/.local/share/draftmill")
    host: str = "127.0.0.1"
    port: int = Field(default=8642, ge=0, le=65535)

    max_attempts: int = Field(default=3, ge=1)
    """A job whose worker was lost this many times is failed."""
    reap_seconds: float = Field(default=2.0, gt=0)
    """Pause between two looks for lost workers and unheard doorbells."""
    ring_seconds: float = Field(default=3.0, gt=0)
    """A doorbell that no worker answered for this long, and whose message is gone, rings again."""
    batch_running: int = Field(default=8, ge=1, le=MAX_RUNNING)
    """At most this many items of one batch are with workers at once. Below the number of workers, one is always free
    for single jobs."""
    preflight_seconds: float = Field(default=30.0, gt=0)
    max_body_bytes: int = Field(default=1_000_000, ge=1)
    keepalive_seconds: float = Field(default=10.0, gt=0)
    """Longest silence in an event stream."""

    keep_variants_days: float | None = Field(default=None, ge=0)
    """`gc` removes variants that nobody used for longer. None, here and below, is no limit."""
    keep_variants_bytes: ByteSize | None = None
    """`gc` removes the least recently used until the rest fits."""
    keep_sources_days: float | None = Field(default=None, ge=0)
    keep_sources_bytes: ByteSize | None = None
    keep_jobs_days: float | None = Field(default=None, ge=0)
    """For requests, results and logs of jobs that are done, and for batches."""
    keep_partials_hours: float = Field(default=24.0, ge=0)
    """For pulls that stopped half-way and may yet be taken up."""

    @model_validator(mode="after")
    def _absolute(self) -> Self:
        object.__setattr__(self, "data_dir", self.data_dir.expanduser().absolute())
        return self

    @property
    def keys_file(self) -> Path:
        return self.data_dir / "keys.json"
