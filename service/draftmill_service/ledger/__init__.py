"""The job record in Redis. The only code of the project that talks to Redis, besides Celery's transport."""

from draftmill_service.ledger.devices import Devices, Granted, Waiting, Wanted
from draftmill_service.ledger.errors import LeaseLost, LedgerUnavailable
from draftmill_service.ledger.ledger import Filters, Gauges, Ledger, Reaped
from draftmill_service.ledger.worker_ledger import Claim, Signal, WorkerLedger

__all__ = [
    "Claim",
    "Devices",
    "Filters",
    "Gauges",
    "Granted",
    "LeaseLost",
    "Ledger",
    "LedgerUnavailable",
    "Reaped",
    "Signal",
    "Waiting",
    "Wanted",
    "WorkerLedger",
]
