"""Every call of the API as data: the request to send and how to read its answer. Both clients send these."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Generic, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from draftmill.batches import CHECKED, Batch, BatchItemPage, BatchPage, BatchReport, BatchSpec, BatchSummary
from draftmill.benchmarks import Acceptance, ArmName
from draftmill.choices import Choice
from draftmill.connection import Connection
from draftmill.errors import ProtocolError
from draftmill.formats import Format, FormatSpec
from draftmill.heads import HeadPlan
from draftmill.jobs import Job, JobPage, JobSpec, PathSource, QuantizeOptions, RepoSource
from draftmill.plans import Family, Plan, Preflight
from draftmill.problems import Problem, ProblemError
from draftmill.receipts import ChainHeads, Receipt, ReceiptDiff, ReceiptPage
from draftmill.reports import Artifacts, EventPage, VerifyReport
from draftmill.states import JobState

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

USER_AGENT = f"draftmill/{metadata.version('draftmill')}"
# A preflight waits for a worker to read headers from the Hub.
PREFLIGHT_SECONDS = 120.0
_FORMATS = TypeAdapter(tuple[FormatSpec, ...])


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    method: str
    path: str
    parse: Callable[[httpx.Response], T]
    params: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    """Sending it twice does what sending it once does, so it may be repeated after a lost answer."""
    read_seconds: float = 30.0

    def request(self, connection: Connection) -> httpx.Request:
        headers = {"User-Agent": USER_AGENT, "Accept": "application/json", **self.headers}
        if connection.api_key:
            headers["Authorization"] = f"Bearer {connection.api_key}"
        if self.body is not None:
            headers["Content-Type"] = "application/json"
        timeout = httpx.Timeout(10.0, read=self.read_seconds)
        return httpx.Request(
            self.method,
            connection.url + self.path,
            params=self.params or None,
            headers=headers,
            content=self.body,
            extensions={"timeout": timeout.as_dict()},
        )


def raise_for_problem(response: httpx.Response) -> None:
    """ProblemError for a problem document, ProtocolError for any other answer that is not a success.

    The response's body must have been read.
    """
    if response.is_success:
        return
    if response.headers.get("content-type", "").startswith("application/problem+json"):
        try:
            problem = Problem.model_validate_json(response.content, extra="ignore")
        except ValidationError as error:
            raise ProtocolError(f"HTTP {response.status_code} with a problem document that cannot be read") from error
        raise ProblemError.from_problem(problem)
    start = response.text[:200].strip()
    raise ProtocolError(f"{response.url} answered HTTP {response.status_code}, not as Draftmill does: {start}")


def _model(model: type[M], context: Mapping[str, str] | None = None) -> Callable[[httpx.Response], M]:
    # Fields that this version does not know are dropped: a newer service may send more.
    def parse(response: httpx.Response) -> M:
        raise_for_problem(response)
        try:
            return model.model_validate_json(response.content, extra="ignore", context=context)
        except ValidationError as error:
            raise ProtocolError(
                f"{response.url} did not answer {model.__name__} as {USER_AGENT} knows it: {error}"
            ) from error

    return parse


def _formats(response: httpx.Response) -> tuple[FormatSpec, ...]:
    raise_for_problem(response)
    try:
        return _FORMATS.validate_json(response.content, extra="ignore")
    except ValidationError as error:
        raise ProtocolError(f"{response.url} did not answer a list of formats: {error}") from error


def job_id(job: Job | str) -> str:
    return job.id if isinstance(job, Job) else job


def _job_path(job: Job | str, *rest: str) -> str:
    return "/".join(["/v1/jobs", quote(job_id(job), safe=""), *rest])


def submit(spec: JobSpec, idempotency_key: str | None = None) -> Call[Job]:
    headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
    return Call("POST", "/v1/jobs", _model(Job), body=spec.model_dump_json().encode(), headers=headers)


def get(job: Job | str) -> Call[Job]:
    return Call("GET", _job_path(job), _model(Job))


def list_jobs(
    *,
    state: JobState | None = None,
    format: Format | None = None,
    family: Family | None = None,
    labels: tuple[str, ...] = (),
    limit: int = 50,
    cursor: str | None = None,
) -> Call[JobPage]:
    """`labels` are `key=value` or `key`; all must hold."""
    named = {"state": state, "format": format, "family": family, "limit": str(limit), "cursor": cursor}
    params = [(name, value) for name, value in named.items() if value is not None]
    return Call("GET", "/v1/jobs", _model(JobPage), params=(*params, *(("label", label) for label in labels)))


def cancel(job: Job | str) -> Call[Job]:
    return Call("POST", _job_path(job, "cancel"), _model(Job), repeatable=False)


def retry(job: Job | str, idempotency_key: str | None = None) -> Call[Job]:
    headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
    return Call("POST", _job_path(job, "retry"), _model(Job), headers=headers)


def events(job: Job | str, *, after: str = "0", limit: int = 1000) -> Call[EventPage]:
    params = (("after", after), ("limit", str(limit)))
    return Call("GET", _job_path(job, "events"), _model(EventPage), params=params)


def plan(job: Job | str) -> Call[Plan]:
    return Call("GET", _job_path(job, "plan"), _model(Plan))


def verify(job: Job | str) -> Call[VerifyReport]:
    return Call("GET", _job_path(job, "verify"), _model(VerifyReport))


def acceptance(job: Job | str) -> Call[Acceptance]:
    return Call("GET", _job_path(job, "acceptance"), _model(Acceptance))


def head(job: Job | str) -> Call[HeadPlan]:
    return Call("GET", _job_path(job, "head"), _model(HeadPlan))


def choice(job: Job | str) -> Call[Choice]:
    return Call("GET", _job_path(job, "choice"), _model(Choice))


def artifacts(job: Job | str) -> Call[Artifacts]:
    return Call("GET", _job_path(job, "artifacts"), _model(Artifacts))


def batch_id(batch: BatchSummary | str) -> str:
    return batch.id if isinstance(batch, BatchSummary) else batch


def _batch_path(batch: BatchSummary | str, *rest: str) -> str:
    return "/".join(["/v1/batches", quote(batch_id(batch), safe=""), *rest])


def submit_batch(spec: BatchSpec, idempotency_key: str | None = None) -> Call[Batch]:
    headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
    return Call("POST", "/v1/batches", _model(Batch, CHECKED), body=spec.model_dump_json().encode(), headers=headers)


def get_batch(batch: BatchSummary | str) -> Call[Batch]:
    return Call("GET", _batch_path(batch), _model(Batch, CHECKED))


def list_batches(
    *, state: JobState | None = None, labels: tuple[str, ...] = (), limit: int = 50, cursor: str | None = None
) -> Call[BatchPage]:
    named = {"state": state, "limit": str(limit), "cursor": cursor}
    params = [(name, value) for name, value in named.items() if value is not None]
    return Call("GET", "/v1/batches", _model(BatchPage), params=(*params, *(("label", label) for label in labels)))


def batch_items(
    batch: BatchSummary | str,
    *,
    state: JobState | None = None,
    format: Format | None = None,
    source: int | None = None,
    limit: int = 200,
    cursor: str | None = None,
) -> Call[BatchItemPage]:
    place = None if source is None else str(source)
    named = {"state": state, "format": format, "source": place, "limit": str(limit), "cursor": cursor}
    params = tuple((name, value) for name, value in named.items() if value is not None)
    return Call("GET", _batch_path(batch, "items"), _model(BatchItemPage), params=params)


def batch_report(batch: BatchSummary | str) -> Call[BatchReport]:
    return Call("GET", _batch_path(batch, "report"), _model(BatchReport))


def cancel_batch(batch: BatchSummary | str) -> Call[Batch]:
    return Call("POST", _batch_path(batch, "cancel"), _model(Batch, CHECKED), repeatable=False)


def retry_batch(batch: BatchSummary | str) -> Call[Batch]:
    return Call("POST", _batch_path(batch, "retry"), _model(Batch, CHECKED), repeatable=False)


def list_receipts(
    *, job: Job | str | None = None, arm: ArmName | None = None, limit: int = 50, cursor: str | None = None
) -> Call[ReceiptPage]:
    named = {"job": None if job is None else job_id(job), "arm": arm, "limit": str(limit), "cursor": cursor}
    params = tuple((name, value) for name, value in named.items() if value is not None)
    return Call("GET", "/v1/receipts", _model(ReceiptPage), params=params)


def receipt(boot: str) -> Call[Receipt]:
    return Call("GET", f"/v1/receipts/{quote(boot, safe='')}", _model(Receipt))


def diff_receipts(a: str, b: str, *, all: bool = False) -> Call[ReceiptDiff]:
    params = (("a", a), ("b", b), *((("all", "true"),) if all else ()))
    return Call("GET", "/v1/receipts/diff", _model(ReceiptDiff), params=params)


def receipt_chains() -> Call[ChainHeads]:
    return Call("GET", "/v1/receipts/chains", _model(ChainHeads))


def preflight(source: RepoSource | PathSource, format: Format, quantize: QuantizeOptions) -> Call[Preflight]:
    spec = JobSpec(source=source, format=format, quantize=quantize)
    body = spec.model_dump_json(include={"source", "format", "quantize"}).encode()
    return Call("POST", "/v1/preflight", _model(Preflight), body=body, read_seconds=PREFLIGHT_SECONDS)


def formats() -> Call[tuple[FormatSpec, ...]]:
    return Call("GET", "/v1/formats", _formats)


def _nothing(response: httpx.Response) -> None:
    raise_for_problem(response)


def follow(job: Job | str, last_id: str | None) -> Call[None]:
    """The event stream, to be read as it comes; the service sends a comment at least every 15 seconds."""
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    if last_id is not None:
        headers["Last-Event-ID"] = last_id
    return Call("GET", _job_path(job, "events"), _nothing, headers=headers, read_seconds=45.0)


def artifact(job: Job | str, path: str, *, offset: int, etag: str) -> Call[None]:
    """One file from `offset` on. Where the file is not `etag` any more, the service sends all of it."""
    headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": f'"{etag}"'}
    return Call("GET", _job_path(job, "artifacts", quote(path)), _nothing, headers=headers)
