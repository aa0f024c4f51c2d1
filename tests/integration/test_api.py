"""The REST API over HTTP: jobs, lists, problems."""

import http.client
import json
from typing import Any

import httpx
import pytest
import redis

from draftmill.formats import FORMATS, FormatSpec
from draftmill.jobs import Job, JobPage
from draftmill.plans import Preflight
from draftmill.problems import KINDS, URN, ProblemError
from draftmill.states import JobState, Outcome, Reason
from draftmill_service.doorbell import make_producer
from draftmill_service.keyring import Scope
from draftmill_service.ledger import Claim, Ledger, WorkerLedger
from draftmill_service.ledger.keys import JOBS_QUEUE, LOOK_TASK
from tests.integration.live import Live, answering_worker

SPEC: dict[str, Any] = {"source": {"repo": "org/drafter"}, "format": "fp8"}
UNKNOWN = "j" + "0" * 26


def problem(response: httpx.Response, slug: str) -> dict[str, Any]:
    """The problem document, after checking that it is a whole one of this slug."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    document: dict[str, Any] = response.json()
    assert document["type"] == URN + slug, document
    assert document["status"] == response.status_code == KINDS[slug].status
    assert document["title"] == KINDS[slug].title
    assert document["detail"]
    assert "Traceback" not in response.text
    return document


def wheres(document: dict[str, Any]) -> set[str]:
    return {offender["where"] for offender in document["offenders"]}


def submit(api: httpx.Client, **fields: Any) -> str:
    response = api.post("/v1/jobs", json={**SPEC, **fields})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


def claim(worker: WorkerLedger, job_id: str) -> Claim:
    claim = worker.claim(job_id, "w1", 60)
    assert claim is not None
    return claim


def test_submit_and_get(api: httpx.Client) -> None:
    response = api.post("/v1/jobs", json={**SPEC, "labels": {"team": "x"}})
    assert response.status_code == 201
    job = Job.model_validate_json(response.content, extra="ignore")
    assert response.headers["location"] == f"/v1/jobs/{job.id}"
    assert job.state is JobState.QUEUED
    assert job.spec.labels == {"team": "x"}
    assert response.json()["done"] is False
    assert api.get(response.headers["location"]).json() == response.json()


def test_new_and_retried_jobs_ring_the_doorbell(api: httpx.Client, clean_redis: str) -> None:
    """A new job's message is pushed by the ledger, a retried one's by Celery's producer; Kombu reads them alike."""
    job_id = submit(api)
    api.post(f"/v1/jobs/{job_id}/cancel")
    api.post(f"/v1/jobs/{job_id}/retry")
    with make_producer(clean_redis).connection_for_read() as broker, broker.SimpleQueue(JOBS_QUEUE) as queue:
        messages = [queue.get(timeout=5) for _ in range(2)]
        for message in messages:
            message.ack()
    assert [message.payload[0] for message in messages] == [[job_id]] * 2
    assert messages[0].payload == messages[1].payload
    assert {message.headers["task"] for message in messages} == {LOOK_TASK}
    assert messages[0].headers.keys() == messages[1].headers.keys()
    assert messages[0].delivery_tag != messages[1].delivery_tag


def test_idempotency_key(api: httpx.Client, live: Live) -> None:
    key = {"Idempotency-Key": "nightly-42"}
    first = api.post("/v1/jobs", json=SPEC, headers=key)
    assert first.status_code == 201
    again = api.post("/v1/jobs", json={**SPEC, "quantize": {}}, headers=key)
    assert again.status_code == 200
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == first.json()
    problem(api.post("/v1/jobs", json={**SPEC, "format": "nvfp4"}, headers=key), "idempotency-mismatch")
    # Another owner's key of the same text is another key.
    with live.client(live.tokens[Scope.WRITE]) as other:
        assert other.post("/v1/jobs", json=SPEC, headers=key).status_code == 201
    assert len(api.get("/v1/jobs").json()["items"]) == 2


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "caf\u00e9"])
def test_idempotency_key_is_checked(api: httpx.Client, key: str) -> None:
    headers = [(b"Idempotency-Key", key.encode("latin-1"))]
    document = problem(api.post("/v1/jobs", json=SPEC, headers=headers), "invalid-request")
    assert wheres(document) == {"header.Idempotency-Key"}


def test_every_offender_in_one_answer(api: httpx.Client) -> None:
    body = {
        "source": {"repo": "no spaces allowed", "revision": "a..b c"},
        "format": "fp9",
        "quantize": {"lm_head": []},
        "extra": 1,
    }
    document = problem(api.post("/v1/jobs", json=body), "invalid-request")
    assert wheres(document) == {"$.source.repo", "$.source.revision", "$.format", "$.quantize.lm_head", "$.extra"}


def test_source_must_be_one_of_the_two(api: httpx.Client) -> None:
    neither = problem(api.post("/v1/jobs", json={**SPEC, "source": {}}), "invalid-request")
    assert wheres(neither) == {"$.source.repo", "$.source.path"}
    both = {"repo": "org/drafter", "path": "/models/x"}
    problem(api.post("/v1/jobs", json={**SPEC, "source": both}), "invalid-request")
    relative = problem(api.post("/v1/jobs", json={**SPEC, "source": {"path": "models/x"}}), "invalid-request")
    assert wheres(relative) == {"$.source.path"}


def test_a_scale_search_is_refused_by_name_where_there_is_none(api: httpx.Client) -> None:
    search = {"nvfp4_scale_search": True}
    for format, scales in (("fp8", "fused"), ("nvfp4", "reference")):
        spec = SPEC | {"format": format, "quantize": search | {"scales": scales}}
        problem(api.post("/v1/jobs", json=spec), "scale-search-refused")
        body = {"sources": [SPEC["source"]], "formats": [format], "options": [{"quantize": spec["quantize"]}]}
        document = problem(api.post("/v1/batches", json=body), "invalid-request")
        assert wheres(document) == {"$.formats[0].options[0]"}
        preflight = {name: spec[name] for name in ("source", "format", "quantize")}
        problem(api.post("/v1/preflight", json=preflight), "scale-search-refused")
    assert api.get("/v1/jobs").json()["items"] == []
    made = api.post("/v1/jobs", json=SPEC | {"format": "nvfp4", "quantize": search})
    assert made.json()["spec"]["quantize"]["nvfp4_scale_search"] is True


@pytest.mark.parametrize("field", ["publish"])
def test_fields_of_later_builds_are_refused_by_name(api: httpx.Client, field: str) -> None:
    document = problem(
        api.post("/v1/jobs", json={**SPEC, field: {"target": {"repo": "org/target"}}}), "field-not-supported"
    )
    assert wheres(document) == {f"$.{field}"}
    assert api.get("/v1/jobs").json()["items"] == []
    assert api.post("/v1/jobs", json={**SPEC, field: None}).status_code == 201


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b'{"source": "\xff\xfe"}', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"null", "application/json"),
        (b'"text"', "application/json"),
        (json.dumps(SPEC).encode(), "text/plain"),
        (json.dumps({**SPEC, "deadline": 0}).encode(), "application/json"),
        (b'{"source": {"repo": "\\ud800"}, "format": "fp8"}', "application/json"),
        (b'{"source": {"repo": "org/drafter"}, "format": "fp8", "labels": {"a": "\\udfff"}}', "application/json"),
        (b'{"source": {"repo": "org/drafter"}, "format": NaN}', "application/json"),
        (b'{"source": {"repo": "org/drafter"}, "format": "fp8", "format": "nvfp4"}', "application/json"),
        (b'{"source": {"repo": "org/drafter"}, "format": ' + b"9" * 5000 + b"}", "application/json"),
    ],
    ids=[
        "empty",
        "cut",
        "utf8",
        "deep",
        "null",
        "text",
        "type",
        "date",
        "surrogate",
        "label",
        "nan",
        "twice",
        "digits",
    ],
)
def test_unreadable_bodies(api: httpx.Client, body: bytes, content_type: str) -> None:
    problem(api.post("/v1/jobs", content=body, headers={"Content-Type": content_type}), "invalid-request")


def test_one_who_sends_a_large_body_whole_gets_the_answer(live: Live) -> None:
    connection = http.client.HTTPConnection(httpx.URL(live.url).netloc.decode(), timeout=20)
    headers = {"Authorization": f"Bearer {live.token}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/jobs", b" " * 20_000_000, headers)
    assert connection.getresponse().status == 413
    connection.close()


def test_large_bodies_are_refused(api: httpx.Client) -> None:
    large = json.dumps({**SPEC, "labels": {"a": "x" * 1_000_000}}).encode()
    problem(api.post("/v1/jobs", content=large, headers={"Content-Type": "application/json"}), "payload-too-large")

    def chunks() -> Any:
        for start in range(0, len(large), 65536):
            yield large[start : start + 65536]

    problem(api.post("/v1/jobs", content=chunks(), headers={"Content-Type": "application/json"}), "payload-too-large")


def test_unknown_routes_and_methods(api: httpx.Client) -> None:
    problem(api.get("/v1/nothing"), "not-found")
    problem(api.get("/v1/jobs/"), "not-found")
    refused = api.delete("/v1/jobs")
    problem(refused, "method-not-allowed")
    assert refused.headers["allow"] == "GET, POST"


@pytest.mark.parametrize("job_id", [UNKNOWN, "does-not-exist", "%00", "..%2f..", "j" * 200])
@pytest.mark.parametrize("rest", ["", "/events", "/plan", "/verify", "/artifacts", "/artifacts/config.json"])
def test_unknown_jobs_are_not_found(api: httpx.Client, job_id: str, rest: str) -> None:
    """C18: never a state for what does not exist."""
    problem(api.get(f"/v1/jobs/{job_id}{rest}"), "not-found")


def test_unknown_jobs_cannot_be_canceled_or_retried(api: httpx.Client) -> None:
    problem(api.post(f"/v1/jobs/{UNKNOWN}/cancel"), "not-found")
    problem(api.post(f"/v1/jobs/{UNKNOWN}/retry"), "not-found")


async def test_removed_jobs_are_gone(api: httpx.Client, ledger: Ledger) -> None:
    job_id = submit(api, labels={"team": "x"})
    with pytest.raises(ProblemError, match="conflict"):
        await ledger.remove(job_id)
    api.post(f"/v1/jobs/{job_id}/cancel")
    await ledger.remove(job_id)
    for rest in ("", "/events", "/artifacts"):
        problem(api.get(f"/v1/jobs/{job_id}{rest}"), "expired")
    problem(api.post(f"/v1/jobs/{job_id}/retry"), "expired")
    for query in ("", "?state=canceled", "?format=fp8", "?label=team", "?label=team=x"):
        assert api.get(f"/v1/jobs{query}").json()["items"] == []


def test_cancel_and_retry(api: httpx.Client, worker: WorkerLedger) -> None:
    job_id = submit(api)
    assert api.post(f"/v1/jobs/{job_id}/cancel").json()["state"] == "canceled"
    assert api.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    assert api.post(f"/v1/jobs/{job_id}/retry").json()["state"] == "queued"
    problem(api.post(f"/v1/jobs/{job_id}/retry"), "conflict")
    held = claim(worker, job_id)
    assert api.post(f"/v1/jobs/{job_id}/cancel").json()["state"] == "canceling"
    assert worker.finish(held, Outcome.CANCELED, Reason.CANCELED_BY_USER)
    assert api.get(f"/v1/jobs/{job_id}").json()["outcome"] == "canceled"


def test_list_filters_and_pages(api: httpx.Client, worker: WorkerLedger) -> None:
    fp8 = [submit(api, labels={"team": "x", "n": str(n)}) for n in range(5)]
    nvfp4 = [submit(api, format="nvfp4", labels={"team": "y"}) for _ in range(3)]
    worker.finish(claim(worker, fp8[1]), Outcome.SUCCEEDED)

    def ids(**query: Any) -> list[str]:
        return [
            job.id
            for job in JobPage.model_validate_json(api.get("/v1/jobs", params=query).content, extra="ignore").items
        ]

    assert ids() == [*nvfp4[::-1], *fp8[::-1]]
    assert ids(format="nvfp4") == nvfp4[::-1]
    assert ids(state="succeeded") == [fp8[1]]
    assert ids(label="team") == [*nvfp4[::-1], *fp8[::-1]]
    assert ids(label="team=x", state="queued") == [fp8[4], fp8[3], fp8[2], fp8[0]]
    assert ids(label=["team=x", "n=3"]) == [fp8[3]]
    assert ids(family="eagle3") == []

    first = api.get("/v1/jobs", params={"format": "fp8", "limit": 3}).json()
    assert [job["id"] for job in first["items"]] == fp8[:1:-1]
    rest = api.get("/v1/jobs", params={"format": "fp8", "limit": 3, "cursor": first["next_cursor"]}).json()
    assert [job["id"] for job in rest["items"]] == fp8[1::-1]
    assert rest["next_cursor"] is None
    for query in ({"format": "nvfp4"}, {}, {"format": "fp8", "state": "queued"}):
        problem(api.get("/v1/jobs", params={**query, "cursor": first["next_cursor"]}), "invalid-cursor")
    problem(api.get("/v1/jobs", params={"cursor": "rubbish"}), "invalid-cursor")


def test_list_refuses_what_it_does_not_know(api: httpx.Client) -> None:
    query = {"state": "sleeping", "limit": "0", "sort": "name", "label": "=x"}
    document = problem(api.get("/v1/jobs", params=query), "invalid-request")
    assert wheres(document) == {"query.state", "query.limit", "query.sort", "query.label.0"}


def test_preflight_without_a_worker_times_out(api: httpx.Client) -> None:
    problem(api.post("/v1/preflight", json=SPEC), "preflight-timeout")
    assert wheres(problem(api.post("/v1/preflight", json={**SPEC, "labels": {}}), "invalid-request")) == {"$.labels"}


def test_preflight_is_answered_by_a_worker(api: httpx.Client, clean_redis: str) -> None:
    answer = Preflight(ok=False, problem=ProblemError("no-weights", "nothing there").problem)
    with answering_worker(clean_redis, answer):
        response = api.post("/v1/preflight", json=SPEC)
    assert response.status_code == 200, response.text
    assert Preflight.model_validate_json(response.content) == answer
    with redis.Redis.from_url(clean_redis) as client:
        assert client.ttl(next(client.scan_iter("draftmill:preflight:*:answer"))) > 0


def test_formats(api: httpx.Client) -> None:
    listed = [FormatSpec.model_validate(each) for each in api.get("/v1/formats").json()]
    assert listed == list(FORMATS.values())


def test_health_and_metrics(api: httpx.Client, live: Live) -> None:
    submit(api)
    assert httpx.get(f"{live.url}/healthz").json() == {"status": "alive"}
    ready = httpx.get(f"{live.url}/readyz").json()
    assert (ready["status"], ready["queued"]) == ("ready", 1)
    text = api.get("/metrics").text
    assert 'draftmill_jobs{state="queued"} 1.0' in text
    assert 'draftmill_http_requests_total{method="POST",route="/v1/jobs",status="201"}' in text
    assert "draftmill_oldest_queued_seconds" in text


def test_a_retry_is_idempotent_by_its_key(api: httpx.Client) -> None:
    job_id = submit(api)
    assert api.get(f"/v1/jobs/{job_id}").json()["queue_position"] == 1
    api.post(f"/v1/jobs/{job_id}/cancel")
    key = {"Idempotency-Key": "again"}
    for _ in range(2):
        retried = api.post(f"/v1/jobs/{job_id}/retry", headers=key)
        assert (retried.status_code, retried.json()["state"]) == (200, "queued")
    problem(api.post(f"/v1/jobs/{job_id}/retry"), "conflict")
    problem(api.post(f"/v1/jobs/{submit(api)}/retry", headers=key), "idempotency-mismatch")
    problem(api.post(f"/v1/jobs/{job_id}/retry", headers={"Idempotency-Key": "a b"}), "invalid-request")
