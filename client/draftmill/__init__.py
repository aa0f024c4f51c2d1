"""Draftmill's client: wire models, the synchronous and asynchronous HTTP clients, and the errors they raise.

from draftmill import Client, Format, JobSpec, RepoSource

with Client() as client:
    job = client.submit(JobSpec(source=RepoSource(repo="org/drafter"), format=Format.FP8_PC_PT))
    for event in client.watch(job):
        print(event.kind, event.data)
    client.download(job, "drafter-fp8")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from draftmill.benchmarks import Acceptance, Benchmark, EngineArgs, Gate, PromptSet
from draftmill.errors import (
    DownloadError,
    DraftmillError,
    FolderTakenError,
    NoServiceError,
    ProtocolError,
    SettingsError,
    TransportError,
)
from draftmill.formats import FORMATS, Format, FormatSpec
from draftmill.jobs import Job, JobPage, JobSpec, PathSource, QuantizeOptions, RepoSource
from draftmill.plans import Family, Fate, Plan, Preflight
from draftmill.problems import Offender, Problem, ProblemError
from draftmill.receipts import ChainHeads, Receipt, ReceiptDiff, ReceiptSummary
from draftmill.reports import (
    Artifacts,
    Check,
    CheckStatus,
    Event,
    EventKind,
    EventPage,
    Manifest,
    ManifestFile,
    VerifyReport,
)
from draftmill.states import JobState, Outcome, Reason, Stage, StageState

if TYPE_CHECKING:
    from draftmill._download import Download
    from draftmill._retry import RetryPolicy
    from draftmill.async_client import AsyncClient
    from draftmill.client import Client

# The service and the worker import the models; they must not pay for the HTTP client.
_LAZY = {
    "AsyncClient": "draftmill.async_client",
    "Client": "draftmill.client",
    "Download": "draftmill._download",
    "RetryPolicy": "draftmill._retry",
}

__all__ = [
    "FORMATS",
    "Acceptance",
    "Artifacts",
    "AsyncClient",
    "Benchmark",
    "ChainHeads",
    "Check",
    "CheckStatus",
    "Client",
    "Download",
    "DownloadError",
    "DraftmillError",
    "EngineArgs",
    "Event",
    "EventKind",
    "EventPage",
    "Family",
    "Fate",
    "FolderTakenError",
    "Format",
    "FormatSpec",
    "Gate",
    "Job",
    "JobPage",
    "JobSpec",
    "JobState",
    "Manifest",
    "ManifestFile",
    "NoServiceError",
    "Offender",
    "Outcome",
    "PathSource",
    "Plan",
    "Preflight",
    "Problem",
    "ProblemError",
    "PromptSet",
    "ProtocolError",
    "QuantizeOptions",
    "Reason",
    "Receipt",
    "ReceiptDiff",
    "ReceiptSummary",
    "RepoSource",
    "RetryPolicy",
    "SettingsError",
    "Stage",
    "StageState",
    "TransportError",
    "VerifyReport",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
