"""The asynchronous client: the same calls and answers as `Client`."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.to_thread
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


class AsyncClient:
    """`Client` with awaits: see there for what each method does. Use as an async context manager, or `aclose`."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 -- immutable
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.connection = find_connection(url, api_key)
        self._retry = retry
        self._patient = retry.for_streams()
        # A proxy from the environment cannot reach this machine's loopback.
        self._http = httpx.AsyncClient(transport=transport, trust_env=not self.connection.is_loopback)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _do(self, call: Call[T]) -> T:
        failures = 0
        while True:
            failures += 1
            try:
                response = await self._http.send(call.request(self.connection))
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
            await anyio.sleep(pause)

    async def submit(self, spec: JobSpec, *, idempotency_key: str | None = None) -> Job:
        return await self._do(_calls.submit(spec, idempotency_key))

    async def get(self, job: Job | str) -> Job:
        return await self._do(_calls.get(job))

    async def list(
        self,
        *,
        state: JobState | None = None,
        format: Format | None = None,
        family: Family | None = None,
        labels: tuple[str, ...] = (),
        page_size: int = 50,
    ) -> AsyncIterator[Job]:
        cursor = None
        while True:
            page = await self._do(
                _calls.list_jobs(
                    state=state, format=format, family=family, labels=labels, limit=page_size, cursor=cursor
                )
            )
            for job in page.items:
                yield job
            if (cursor := page.next_cursor) is None:
                return

    async def cancel(self, job: Job | str) -> Job:
        return await self._do(_calls.cancel(job))

    async def retry(self, job: Job | str, *, idempotency_key: str | None = None) -> Job:
        return await self._do(_calls.retry(job, idempotency_key))

    async def events(self, job: Job | str, *, after: str = "0", limit: int = 1000) -> EventPage:
        return await self._do(_calls.events(job, after=after, limit=limit))

    async def watch(
        self, job: Job | str, *, after: str | None = None, away: Away | None = None
    ) -> AsyncIterator[Event]:
        follow = Follow(job, after, self._patient, away)
        while True:
            lost: Exception | None = None
            try:
                async with aclosing(self._stream(follow)) as events:
                    async for event in events:
                        yield event
                if follow.over((await self.get(job)).done):
                    return
            except (httpx.TransportError, DraftmillError) as error:
                if not may_pass(error):
                    raise
                lost = error
            await anyio.sleep(follow.lost(lost))

    async def _stream(self, follow: Follow) -> AsyncGenerator[Event]:
        response = await self._http.send(follow.call().request(self.connection), stream=True)
        try:
            if not response.is_success:
                await response.aread()
                if not busy(response):
                    _calls.raise_for_problem(response)
                return
            async for message in EventSource(response).aiter_sse():
                if (event := follow.take(message)) is not None:
                    yield event
        finally:
            await response.aclose()

    async def wait(self, job: Job | str) -> Job:
        async for _ in self.watch(job):
            pass
        return await self.get(job)

    async def plan(self, job: Job | str) -> Plan:
        return await self._do(_calls.plan(job))

    async def verify(self, job: Job | str) -> VerifyReport:
        return await self._do(_calls.verify(job))

    async def acceptance(self, job: Job | str) -> Acceptance:
        return await self._do(_calls.acceptance(job))

    async def head(self, job: Job | str) -> HeadPlan:
        return await self._do(_calls.head(job))

    async def choice(self, job: Job | str) -> Choice:
        return await self._do(_calls.choice(job))

    async def artifacts(self, job: Job | str) -> Artifacts:
        return await self._do(_calls.artifacts(job))

    async def download(
        self, job: Job | str, folder: Path | str, *, progress: Progress | None = None, parallel: int = 4
    ) -> Download:
        artifacts = await self.artifacts(job)
        where = await anyio.to_thread.run_sync(places, Path(folder), artifacts.files)
        limit = anyio.CapacityLimiter(max(1, parallel))
        received: dict[str, int] = {}

        async def fetch(file: ManifestFile) -> None:
            async with limit:
                received[file.path] = await self._fetch(job, where[file.path], file, progress)

        try:
            async with anyio.create_task_group() as group:
                for file in artifacts.files:
                    group.start_soon(fetch, file)
        except BaseExceptionGroup as errors:
            # Callers handle the errors of draftmill.errors; the first file's stands for all.
            raise errors.exceptions[0] from None
        return Download(Path(folder).resolve(), artifacts, sum(received.values()))

    async def _fetch(self, job: Job | str, place: Path, file: ManifestFile, progress: Progress | None) -> int:
        with storing(file):
            if await anyio.to_thread.run_sync(matches, place, file):
                if progress is not None:
                    progress(file.path, file.size, file.size)
                return 0
            # Hashing what an interrupted download left happens off the event loop.
            with closing(await anyio.to_thread.run_sync(Part, place, file)) as part:
                transfer = Transfer(job, part, self._retry, progress)
                while True:
                    transfer.tell()
                    await self._receive(transfer)
                    if await anyio.to_thread.run_sync(transfer.finish):
                        return transfer.received

    async def _receive(self, transfer: Transfer) -> None:
        while (call := transfer.call()) is not None:
            lost: httpx.TransportError | None = None
            try:
                await self._stream_file(call, transfer)
            except httpx.TransportError as error:
                lost = error
            if transfer.call() is not None:
                await anyio.sleep(transfer.lost(lost))

    async def _stream_file(self, call: Call[Any], transfer: Transfer) -> None:
        response = await self._http.send(call.request(self.connection), stream=True)
        try:
            if not response.is_success:
                await response.aread()
                if not busy(response):
                    _calls.raise_for_problem(response)
                return
            transfer.accept(response)
            async for block in response.aiter_raw():
                await anyio.to_thread.run_sync(transfer.write, block)
        finally:
            await response.aclose()

    async def submit_batch(self, spec: BatchSpec, *, idempotency_key: str | None = None) -> Batch:
        return await self._do(_calls.submit_batch(spec, idempotency_key))

    async def get_batch(self, batch: BatchSummary | str) -> Batch:
        return await self._do(_calls.get_batch(batch))

    async def batches(
        self, *, state: JobState | None = None, labels: tuple[str, ...] = (), page_size: int = 50
    ) -> AsyncIterator[BatchSummary]:
        cursor = None
        while True:
            page = await self._do(_calls.list_batches(state=state, labels=labels, limit=page_size, cursor=cursor))
            for item in page.items:
                yield item
            if (cursor := page.next_cursor) is None:
                return

    async def batch_items(
        self,
        batch: BatchSummary | str,
        *,
        state: JobState | None = None,
        format: Format | None = None,
        source: int | None = None,
        page_size: int = 200,
    ) -> AsyncIterator[BatchItem]:
        cursor = None
        while True:
            page = await self._do(
                _calls.batch_items(batch, state=state, format=format, source=source, limit=page_size, cursor=cursor)
            )
            for item in page.items:
                yield item
            if (cursor := page.next_cursor) is None:
                return

    async def batch_report(self, batch: BatchSummary | str) -> BatchReport:
        return await self._do(_calls.batch_report(batch))

    async def cancel_batch(self, batch: BatchSummary | str) -> Batch:
        return await self._do(_calls.cancel_batch(batch))

    async def retry_batch(self, batch: BatchSummary | str) -> Batch:
        return await self._do(_calls.retry_batch(batch))

    async def watch_batch(
        self, batch: BatchSummary | str, *, every: float = EVERY_SECONDS, away: Away | None = None
    ) -> AsyncIterator[Batch]:
        polling = Polling(self._patient, every, away)
        while not polling.over:
            try:
                if polling.changed(found := await self.get_batch(batch)):
                    yield found
            except DraftmillError as error:
                polling.lost(error)
            if not polling.over:
                await anyio.sleep(polling.pause)

    async def receipts(
        self, *, job: Job | str | None = None, arm: ArmName | None = None, page_size: int = 50
    ) -> AsyncIterator[ReceiptSummary]:
        cursor = None
        while True:
            page = await self._do(_calls.list_receipts(job=job, arm=arm, limit=page_size, cursor=cursor))
            for item in page.items:
                yield item
            if (cursor := page.next_cursor) is None:
                return

    async def receipt(self, boot: str) -> Receipt:
        return await self._do(_calls.receipt(boot))

    async def diff_receipts(self, a: str, b: str, *, all: bool = False) -> ReceiptDiff:
        return await self._do(_calls.diff_receipts(a, b, all=all))

    async def receipt_chains(self) -> ChainHeads:
        return await self._do(_calls.receipt_chains())

    async def preflight(
        self,
        source: RepoSource | PathSource,
        format: Format,
        quantize: QuantizeOptions = QuantizeOptions(),  # noqa: B008 -- immutable
    ) -> Preflight:
        return await self._do(_calls.preflight(source, format, quantize))

    async def formats(self) -> tuple[FormatSpec, ...]:
        return await self._do(_calls.formats())
