"""The verify report, variant manifest and events."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from draftmill._model import Model
from draftmill.jobs import AcceptanceSummary, Instant, Sha256
from draftmill.problems import Offender


class CheckStatus(StrEnum):
    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    """Does not apply to this variant, or what it needs is not installed; the evidence says which."""


class Check(Model):
    id: str
    status: CheckStatus
    proves: str
    evidence: dict[str, Any] = Field(default_factory=dict)
    offenders: tuple[Offender, ...] = ()
    seconds: float = 0.0


class VerifyReport(Model):
    schema_: Literal["draftmill.verify/v1"] = Field(default="draftmill.verify/v1", alias="schema")
    passed: bool
    checks: tuple[Check, ...]
    versions: dict[str, str] = Field(default_factory=dict)


class ManifestFile(Model):
    path: str
    size: int
    sha256: Sha256


class Manifest(Model):
    """Files of a source or a variant, sorted by path."""

    files: tuple[ManifestFile, ...]


class Artifacts(Model):
    """What `GET /v1/jobs/{id}/artifacts` answers."""

    variant: Sha256
    files: tuple[ManifestFile, ...]
    acceptance: AcceptanceSummary | None = None
    """The newest benchmark of the variant, with its gate's verdict; None when there was none."""


LEDGER_AWAY = "ledger-unavailable"
"""Name of the event without data in a stream that waits for its ledger."""


class EventKind(StrEnum):
    STATE = "state"
    ATTEMPT = "attempt"
    STAGE = "stage"
    PROGRESS = "progress"
    LOG = "log"


class Event(Model):
    id: str
    """Redis stream id, `<milliseconds>-<sequence>`; also the SSE id."""
    job: str
    time: Instant
    kind: EventKind
    data: dict[str, Any] = Field(default_factory=dict)


class EventPage(Model):
    items: tuple[Event, ...]
    last_id: str
