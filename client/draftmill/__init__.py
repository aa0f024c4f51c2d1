"""Draftmill's client: wire models, the synchronous and asynchronous HTTP clients, and the errors they raise.

from draftmill import Client, Format, JobSpec, RepoSource

with Client() as client:
    job = client.submit(JobSpec(source=RepoSource(repo="org/drafter"), format=Format.FP8_PC_PT))
    for event in client.watch(job):
        print(event.kind, event.data)
    client.download(job, "drafter-fp8")
"""

from typing import TYPE_CHECKING

from draftmill._lazy import lazy

if TYPE_CHECKING:
    from draftmill._download import Download
    from draftmill._retry import RetryPolicy
    from draftmill.async_client import AsyncClient
    from draftmill.batches import Batch, BatchItem, BatchOptions, BatchReport, BatchSpec, BatchSummary
    from draftmill.benchmarks import Acceptance, Benchmark, EngineArgs, Gate, PromptSet
    from draftmill.choices import Auto, Choice
    from draftmill.client import Client
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
    from draftmill.heads import CaptureOptions, DraftVocabOptions, HeadOptions, HeadPlan
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

# A command or a worker must not pay for the models and the HTTP client that it does not use.
__getattr__ = lazy(
    __name__,
    {
        "_download": "Download",
        "_retry": "RetryPolicy",
        "async_client": "AsyncClient",
        "batches": "Batch BatchItem BatchOptions BatchReport BatchSpec BatchSummary",
        "benchmarks": "Acceptance Benchmark EngineArgs Gate PromptSet",
        "choices": "Auto Choice",
        "client": "Client",
        "errors": (
            "DownloadError DraftmillError FolderTakenError NoServiceError ProtocolError SettingsError TransportError"
        ),
        "formats": "FORMATS Format FormatSpec",
        "heads": "CaptureOptions DraftVocabOptions HeadOptions HeadPlan",
        "jobs": "Job JobPage JobSpec PathSource QuantizeOptions RepoSource",
        "plans": "Family Fate Plan Preflight",
        "problems": "Offender Problem ProblemError",
        "receipts": "ChainHeads Receipt ReceiptDiff ReceiptSummary",
        "reports": "Artifacts Check CheckStatus Event EventKind EventPage Manifest ManifestFile VerifyReport",
        "states": "JobState Outcome Reason Stage StageState",
    },
)

__all__ = [
    "FORMATS",
    "Acceptance",
    "Artifacts",
    "AsyncClient",
    "Auto",
    "Batch",
    "BatchItem",
    "BatchOptions",
    "BatchReport",
    "BatchSpec",
    "BatchSummary",
    "Benchmark",
    "CaptureOptions",
    "ChainHeads",
    "Check",
    "CheckStatus",
    "Choice",
    "Client",
    "Download",
    "DownloadError",
    "DraftVocabOptions",
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
    "HeadOptions",
    "HeadPlan",
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
