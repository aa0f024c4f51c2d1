"""The synchronous client."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from httpx_sse import EventSource

from draftmill import _calls
from draftmill._calls import Call
from draftmill._download import Download, Progress, Transfer
from draftmill._part import Part, matches, storing
from draftmill._paths import places
from draftmill._polling import EVERY_SECONDS, Polling
from draftmill._retry import RetryPolicy, busy
from draftmill._watch import Away, Follow, may_pass
from draftmill.batches import Batch, BatchItem, BatchReport, BatchSpec, BatchSummary
from draftmill.benchmarks import Acceptance, ArmName
from draftmill.choices import Choice
from draftmill.connection import find_connection
from draftmill.errors import DraftmillError, TransportError
from draftmill.formats import Format, FormatSpec
from draftmill.heads import HeadPlan
from draftmill.jobs import Job, JobSpec, PathSource, QuantizeOptions, RepoSource
from draftmill.plans import Family, Plan, Preflight
from draftmill.receipts import ChainHeads, Receipt, ReceiptDiff, ReceiptSummary
from draftmill.reports import Artifacts, Event, EventPage, ManifestFile, VerifyReport
from draftmill.states import JobState

T = TypeVar("T")


class Client:
    """Talks to one service over one connection pool; safe to share between threads. Use as a context manager, or close.

    `url` and `api_key` default to DRAFTMILL_URL and DRAFTMILL_API_KEY, then to what `draftmill up` left in the data
    directory. Every method raises the errors that `draftmill.errors` lists.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 -- immutable
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.connection = find_connection(url, api_key)
        self._retry = retry
        self._patient = retry.for_streams()
        # A proxy from the environment cannot reach this machine's loopback.
        self._http = httpx.Client(transport=transport, trust_env=not self.connection.is_loopback)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _do(self, call: Call[T]) -> T:
        failures = 0
        while True:
            failures += 1
            try:
                response = self._http.send(call.request(self.connection))
            except httpx.TransportError as error:
                pause = self._retry.after_error(call, error, failures)
                if pause is None:
                    raise TransportError(
                        f"no answer from {self.connection.url}: {error or type(error).__name__}"
                    ) from error
            else:
                pause = self._retry.after_response(call, response, failures)
                if pause is None:
                    return call.parse(response)
            time.sleep(pause)

    def submit(self, spec: JobSpec, *, idempotency_key: str | None = None) -> Job:
        """A new job; with a key used before, the job it made then. Without a key each call makes one job."""
        return self._do(_calls.submit(spec, idempotency_key))

    def get(self, job: Job | str) -> Job:
        return self._do(_calls.get(job))

    def list(
        self,
        *,
        state: JobState | None = None,
        format: Format | None = None,
        family: Family | None = None,
        labels: tuple[str, ...] = (),
        page_size: int = 50,
    ) -> Iterator[Job]:
        """All matching jobs, newest first, asked for page by page. `labels` are `key=value` or `key`; all must hold."""
        cursor = None
        while True:
            page = self._do(
                _calls.list_jobs(
                    state=state, format=format, family=family, labels=labels, limit=page_size, cursor=cursor
                )
            )
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def cancel(self, job: Job | str) -> Job:
        """The job as it is after asking: canceled at once when queued, canceling when it runs."""
        return self._do(_calls.cancel(job))

    def retry(self, job: Job | str, *, idempotency_key: str | None = None) -> Job:
        """Queues a failed or canceled job again, under its own id, unless its deadline has passed."""
        return self._do(_calls.retry(job, idempotency_key))

    def events(self, job: Job | str, *, after: str = "0", limit: int = 1000) -> EventPage:
        return self._do(_calls.events(job, after=after, limit=limit))

    def watch(self, job: Job | str, *, after: str | None = None, away: Away | None = None) -> Iterator[Event]:
        """The job's events from the first (or from the one after `after`) until it is done, over lost connections.

        `away` is told why, once each time that the service or its ledger is away; the watching goes on.
        """
        follow = Follow(job, after, self._patient, away)
        while True:
            lost: Exception | None = None
            try:
                yield from self._stream(follow)
                if follow.over(self.get(job).done):
                    return
            except (httpx.TransportError, DraftmillError) as error:
                if not may_pass(error):
                    raise
                lost = error
            time.sleep(follow.lost(lost))

    def _stream(self, follow: Follow) -> Iterator[Event]:
        response = self._http.send(follow.call().request(self.connection), stream=True)
        try:
            if not response.is_success:
                response.read()
                if not busy(response):
                    _calls.raise_for_problem(response)
                return
            for message in EventSource(response).iter_sse():
                if (event := follow.take(message)) is not None:
                    yield event
        finally:
            response.close()

    def wait(self, job: Job | str) -> Job:
        """The job once it is done."""
        for _ in self.watch(job):
            pass
        return self.get(job)

    def plan(self, job: Job | str) -> Plan:
        return self._do(_calls.plan(job))

    def verify(self, job: Job | str) -> VerifyReport:
        return self._do(_calls.verify(job))

    def acceptance(self, job: Job | str) -> Acceptance:
        return self._do(_calls.acceptance(job))

    def head(self, job: Job | str) -> HeadPlan:
        return self._do(_calls.head(job))

    def choice(self, job: Job | str) -> Choice:
        return self._do(_calls.choice(job))

    def artifacts(self, job: Job | str) -> Artifacts:
        """The files of the job's sealed variant with sizes and hashes."""
        return self._do(_calls.artifacts(job))

    def download(
        self, job: Job | str, folder: Path | str, *, progress: Progress | None = None, parallel: int = 1
    ) -> Download:
        """Puts the job's variant into `folder`; every file is checked by SHA-256 and gets its name when whole.

        Files that are there already are kept when their hash is right and replaced when it is not; parts left by an
        interrupted download are continued. `parallel` files come at once.
        """
        artifacts = self.artifacts(job)
        where = places(Path(folder), artifacts.files)
        stop = threading.Event()

        def fetch(file: ManifestFile) -> int:
            return self._fetch(job, where[file.path], file, progress, stop)

        if parallel <= 1:
            received = sum(map(fetch, artifacts.files))
        else:
            with ThreadPoolExecutor(max_workers=parallel) as pool:
                try:
                    received = sum(pool.map(fetch, artifacts.files))
                except BaseException:
                    stop.set()
                    pool.shutdown(wait=True, cancel_futures=True)
                    raise
        return Download(Path(folder).resolve(), artifacts, received)

    def _fetch(
        self, job: Job | str, place: Path, file: ManifestFile, progress: Progress | None, stop: threading.Event
    ) -> int:
        with storing(file):
            if matches(place, file):
                if progress is not None:
                    progress(file.path, file.size, file.size)
                return 0
            with closing(Part(place, file)) as part:
                transfer = Transfer(job, part, self._retry, progress, stop.is_set)
                while True:
                    transfer.tell()
                    self._receive(transfer)
                    if transfer.finish():
                        return transfer.received

    def _receive(self, transfer: Transfer) -> None:
        while (call := transfer.call()) is not None:
            lost: httpx.TransportError | None = None
            try:
                self._stream_file(call, transfer)
            except httpx.TransportError as error:
                lost = error
            if transfer.call() is not None:
                time.sleep(transfer.lost(lost))

    def _stream_file(self, call: Call[Any], transfer: Transfer) -> None:
        response = self._http.send(call.request(self.connection), stream=True)
        try:
            if not response.is_success:
                response.read()
                if not busy(response):
                    _calls.raise_for_problem(response)
                return
            transfer.accept(response)
            for block in response.iter_raw():
                transfer.write(block)
        finally:
            response.close()

    def submit_batch(self, spec: BatchSpec, *, idempotency_key: str | None = None) -> Batch:
        """A new batch, one job for each item of its matrix; with a key used before, the batch it made then."""
        return self._do(_calls.submit_batch(spec, idempotency_key))

    def get_batch(self, batch: BatchSummary | str) -> Batch:
        return self._do(_calls.get_batch(batch))

    def batches(
        self, *, state: JobState | None = None, labels: tuple[str, ...] = (), page_size: int = 50
    ) -> Iterator[BatchSummary]:
        """All matching batches, newest first, asked for page by page."""
        cursor = None
        while True:
            page = self._do(_calls.list_batches(state=state, labels=labels, limit=page_size, cursor=cursor))
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def batch_items(
        self,
        batch: BatchSummary | str,
        *,
        state: JobState | None = None,
        format: Format | None = None,
        source: int | None = None,
        page_size: int = 200,
    ) -> Iterator[BatchItem]:
        """The batch's items by number, asked for page by page. `source` is a position in the spec's list."""
        cursor = None
        while True:
            page = self._do(
                _calls.batch_items(batch, state=state, format=format, source=source, limit=page_size, cursor=cursor)
            )
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def batch_report(self, batch: BatchSummary | str) -> BatchReport:
        """What the items found so far."""
        return self._do(_calls.batch_report(batch))

    def cancel_batch(self, batch: BatchSummary | str) -> Batch:
        """The batch as it is after asking: items that wait are canceled at once."""
        return self._do(_calls.cancel_batch(batch))

    def retry_batch(self, batch: BatchSummary | str) -> Batch:
        """Queues the items again that failed or were canceled."""
        return self._do(_calls.retry_batch(batch))

    def watch_batch(
        self, batch: BatchSummary | str, *, every: float = EVERY_SECONDS, away: Away | None = None
    ) -> Iterator[Batch]:
        """The batch now, and whenever it has changed, until it is done, over lost connections. `every`: seconds between
        two looks.

        `away` is told why, once each time that the service or its ledger is away; the watching goes on.
        """
        polling = Polling(self._patient, every, away)
        while not polling.over:
            try:
                if polling.changed(found := self.get_batch(batch)):
                    yield found
            except DraftmillError as error:
                polling.lost(error)
            if not polling.over:
                time.sleep(polling.pause)

    def receipts(
        self, *, job: Job | str | None = None, arm: ArmName | None = None, page_size: int = 50
    ) -> Iterator[ReceiptSummary]:
        """Boots of engines, newest first, asked for page by page. With a filter only those that left a receipt."""
        cursor = None
        while True:
            page = self._do(_calls.list_receipts(job=job, arm=arm, limit=page_size, cursor=cursor))
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def receipt(self, boot: str) -> Receipt:
        return self._do(_calls.receipt(boot))

    def diff_receipts(self, a: str, b: str, *, all: bool = False) -> ReceiptDiff:
        """What differs between two boots' receipts; with `all` also what differs between any two runs."""
        return self._do(_calls.diff_receipts(a, b, all=all))

    def receipt_chains(self) -> ChainHeads:
        """Heads of the chains of receipts in the ledger, to prove an archive with: `draftmill.archive.verify`."""
        return self._do(_calls.receipt_chains())

    def preflight(
        self,
        source: RepoSource | PathSource,
        format: Format,
        quantize: QuantizeOptions = QuantizeOptions(),  # noqa: B008 -- immutable
    ) -> Preflight:
        """The plan for a Hub repository from its headers alone, or the problem that a job for it would end in."""
        return self._do(_calls.preflight(source, format, quantize))

    def formats(self) -> tuple[FormatSpec, ...]:
        return self._do(_calls.formats())
