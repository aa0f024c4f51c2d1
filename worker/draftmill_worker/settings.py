"""The worker's settings, read once from the environment."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from draftmill._model import Model
from draftmill.states import Stage
from draftmill_service.ledger.address import RedisUrl, configured_url

HUB = "https://huggingface.co"


class StageSettings(Model):
    """The part a stage process sees. It is written to request.json, so nothing in here is secret."""

    hub_endpoint: str = HUB
    allowed_roots: tuple[Path, ...] = ()
    """Folders that a `path` source may lie under."""
    disk_budget_bytes: int | None = None
    stall_seconds: float = 60.0
    """A download that gains no byte for this long is given up."""
    link_local: bool = False
    """Hard-link a `path` source instead of copying it."""
    threads: int = 1
    device: str = "cpu"
    """Where weights are packed: `cpu`, or a CUDA device."""
    boot_seconds: float = 7200.0
    """Deadline of one engine boot with its prompts."""
    trust_remote_code_repos: tuple[str, ...] = ()
    """Repositories whose own code an engine may run, when a job asks for that."""


def _threads() -> int:
    return len(os.sched_getaffinity(0))


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", HUB)


class WorkerSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="DRAFTMILL_", frozen=True, extra="ignore", allow_inf_nan=False)

    redis_url: RedisUrl = Field(default_factory=configured_url, validate_default=True, repr=False)
    """Ledger and broker. It may hold a password, and may come by a file."""
    data_dir: Path = Field(default=Path("~/.local/share/draftmill"), validate_default=True)
    hub_endpoint: str = Field(default_factory=_endpoint, validate_default=True)
    allowed_roots: str = ""
    """Separated as PATH is."""
    disk_budget_bytes: int | None = Field(default=None, ge=0)
    stall_seconds: float = Field(default=60.0, gt=0)
    link_local: bool = False
    threads: int = Field(default_factory=_threads, ge=1)
    device: str = "cpu"

    lease_seconds: float = Field(default=10.0, gt=0)
    heartbeat_seconds: float = Field(default=5.0, gt=0)
    """Between two signs of life to the ledger; after three that did not come the worker is gone from the dashboard."""
    ledger_patience_seconds: float = Field(default=60.0, ge=0)
    """A job goes on for this long while the ledger cannot be reached: nobody else can claim it meanwhile."""
    benchmarks: bool = True
    """Whether this worker takes jobs that ask for a benchmark."""
    boot_seconds: float = Field(default=7200.0, gt=0)
    trust_remote_code_repos: str = ""
    """Separated by commas."""
    stage_seconds: float = Field(default=3600.0, gt=0)
    """Deadline of every stage but pull, choose, capture and bench."""
    bench_seconds: float = Field(default=12 * 3600.0, gt=0)
    """Deadline of bench, and of choose and capture, with all their boots."""
    pull_seconds: float = Field(default=6 * 3600.0, gt=0)
    """Deadline of pull, which has its own watchdog for a stalled download."""
    drain_seconds: float = Field(default=8.0, ge=0)
    """How long a job may go on after SIGTERM before it is handed back. Container runtimes kill after 10 s."""
    machine: str = Field(default="", pattern=r"^[A-Za-z0-9._-]{0,64}$")
    """Whose devices this worker uses; workers that could reach the same device must say the same. Empty: the kernel's
    boot id, which is the machine's, in containers too."""
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Where Prometheus finds /metrics of this worker, without a key; none by default."""
    metrics_host: str = "127.0.0.1"
    template_seconds: float = Field(default=180.0, gt=0)
    """How long a stage waits for the template to have its imports done."""
    preflight_seconds: float = Field(default=30.0, gt=0)
    """A preflight is killed after this long: by then nobody waits for its answer."""
    stages: str = "draftmill_worker.stages"
    """Package that holds one module per stage."""

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("hub_endpoint")
    @classmethod
    def _is_url(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ValueError("must be http:// or https:// with a host (HF_ENDPOINT is its default)")
        return value

    def for_stages(self) -> StageSettings:
        return StageSettings(
            hub_endpoint=self.hub_endpoint,
            allowed_roots=tuple(Path(root) for root in self.allowed_roots.split(os.pathsep) if root),
            disk_budget_bytes=self.disk_budget_bytes,
            stall_seconds=self.stall_seconds,
            link_local=self.link_local,
            threads=self.threads,
            device=self.device,
            boot_seconds=self.boot_seconds,
            trust_remote_code_repos=tuple(name for name in self.trust_remote_code_repos.split(",") if name),
        )

    def deadline(self, stage: Stage) -> float:
        """Seconds the stage may take."""
        long = {Stage.PULL: self.pull_seconds} | dict.fromkeys(
            (Stage.CHOOSE, Stage.CAPTURE, Stage.BENCH), self.bench_seconds
        )
        return long.get(stage, self.stage_seconds)
