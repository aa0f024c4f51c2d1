"""Holding a claim: a thread that renews the lease and hears on the way that the job is to stop."""

import logging
import threading
import time
from typing import Self

from draftmill_service.ledger import Claim, LedgerUnavailable, Signal, WorkerLedger

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 0.5
"""A cancel is noticed within this time."""


class Lease:
    """While the context lasts the lease is renewed; `signal` tells when to stop, and why."""

    def __init__(self, ledger: WorkerLedger, claim: Claim, seconds: float, patience: float) -> None:
        self._ledger = ledger
        self._claim = claim
        self._seconds = seconds
        self._patience = patience
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self.signal = Signal.CONTINUE

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join()

    def _renew(self) -> None:
        heard = time.monotonic()
        while self.signal is Signal.CONTINUE and not self._leave.wait(min(self._seconds / 3, CANCEL_SECONDS)):
            try:
                self.signal = self._ledger.renew(self._claim, self._seconds)
                heard = time.monotonic()
            except LedgerUnavailable as error:
                # The ledger alone says who holds the job: while it is away nobody else can claim it.
                logger.warning("cannot renew the lease of %s: %s", self._claim.job.id, error)
                if time.monotonic() - heard > self._patience:
                    self.signal = Signal.LOST
