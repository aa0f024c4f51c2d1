"""Batches over HTTP: the matrix, its refusals by position, counts, lists, items and the report."""

import asyncio
import csv
import io
import json
from typing import Any

import httpx
import pytest

from draftmill.batches import Batch, BatchItemPage, BatchPage, BatchReport
from draftmill.jobs import Job, Summary
from draftmill.problems import ProblemError
from draftmill.states import JobState, Outcome, Reason
from draftmill_service.doorbell import make_producer
from draftmill_service.keyring import Scope
from draftmill_service.ledger import Ledger, WorkerLedger
from draftmill_service.ledger.keys import BATCHES_QUEUE, LOOK_TASK
from draftmill_service.reaper import IDLE_SECONDS
from tests.integration.live import Live
from tests.integration.test_api import claim, problem, wheres
from tests.integration.test_api_artifacts import RESOLVED
from tests.support import eventually

MATRIX: dict[str, Any] = {
    "sources": [{"repo": "org/a"}, {"repo": "org/b", "revision": "v2"}],
    "formats": ["fp8", "nvfp4"],
    "labels": {"team": "x"},
}


def submit(api: httpx.Client, **fields: Any) -> Batch:
    response = api.post("/v1/batches", json={**MATRIX, **fields})
    assert response.status_code == 201, response.text
    batch = Batch.model_validate_json(response.content, extra="ignore")
    assert response.headers["location"] == f"/v1/batches/{batch.id}"
    return batch


def items(api: httpx.Client, batch: Batch, **query: Any) -> BatchItemPage:
    response = api.get(f"/v1/batches/{batch.id}/items", params=query)
    return BatchItemPage.model_validate_json(response.content)


def get(api: httpx.Client, batch: Batch) -> Batch:
    return Batch.model_validate_json(api.get(f"/v1/batches/{batch.id}").content, extra="ignore")


def test_a_batch_of_800_is_an_ordinary_request(api: httpx.Client) -> None:
    sources = [{"repo": f"org/drafter-{number}"} for number in range(200)]
    batch = submit(api, sources=sources, formats=["fp8", "fp8_pc_pt", "nvfp4", "w4a16_nvfp4"])
    assert (batch.total, batch.made, batch.state) == (800, 800, JobState.QUEUED)
    assert batch.counts[JobState.QUEUED] == 800
    assert get(api, batch) == batch
    report = BatchReport.model_validate_json(api.get(f"/v1/batches/{batch.id}/report").content, extra="ignore")
    assert [row.index for row in report.rows] == list(range(800))


def test_items_are_jobs_that_name_their_batch(api: httpx.Client) -> None:
    batch = submit(api)
    page = items(api, batch)
    assert [(item.source.model_dump()["repo"], item.format.value) for item in page.items] == [
        ("org/a", "fp8"),
        ("org/a", "nvfp4"),
        ("org/b", "fp8"),
        ("org/b", "nvfp4"),
    ]
    job = Job.model_validate_json(api.get(f"/v1/jobs/{page.items[3].job}").content, extra="ignore")
    assert (job.batch, job.spec.labels) == (batch.id, {"team": "x"})
    assert [item.index for item in items(api, batch, source=1, format="fp8").items] == [2]
    first = items(api, batch, limit=3)
    assert [item.index for item in items(api, batch, limit=3, cursor=first.next_cursor).items] == [3]
    problem(api.get(f"/v1/batches/{batch.id}/items", params={"cursor": "0.0"}), "invalid-cursor")


def test_a_message_of_an_item_is_one_that_celery_reads(api: httpx.Client, clean_redis: str) -> None:
    batch = submit(api, max_running=1)
    with make_producer(clean_redis).connection_for_read() as broker, broker.SimpleQueue(BATCHES_QUEUE) as queue:
        message = queue.get(timeout=5)
        message.ack()
    assert message.headers["task"] == LOOK_TASK
    assert message.payload[0] == [items(api, batch).items[0].job]


def test_all_offenders_are_named_by_their_place(api: httpx.Client) -> None:
    wrong = {
        "sources": [{"repo": "org/a"}, {"repo": "a--b"}, {"path": "relative"}, {"repo": "org/a"}],
        "formats": ["fp8", "int3", "fp8"],
        "options": [{"quantize": {"lm_heads": True}}],
        "max_failures": -1,
    }
    found = wheres(problem(api.post("/v1/batches", json=wrong), "invalid-request"))
    assert found == {
        "$.sources[1].repo",
        "$.sources[2].path",
        "$.formats[1]",
        "$.options[0].quantize.lm_heads",
        "$.max_failures",
    }
    # What repeats on an axis is seen once all of that axis can be read.
    repeated = {
        "sources": [{"repo": "org/a"}, {"repo": "org/b"}, {"repo": "org/a", "revision": "main"}],
        "max_running": 0,
        "formats": ["fp8", "nvfp4", "fp8"],
        "options": [{"name": "one"}, {"name": "one", "quantize": {"lm_head": True}}, {}],
    }
    document = problem(api.post("/v1/batches", json=repeated), "invalid-request")
    assert wheres(document) == {*("$.sources[2]", "$.formats[2]", "$.options[1].name", "$.options[2]", "$.max_running")}
    assert wheres(problem(api.post("/v1/batches", json={**MATRIX, "formats": []}), "invalid-request")) == {"$.formats"}
    many = {**MATRIX, "sources": [{"repo": f"-{number}"} for number in range(200)]}
    assert len(wheres(problem(api.post("/v1/batches", json=many), "invalid-request"))) == 200
    large = {**MATRIX, "sources": [{"repo": f"d{n}"} for n in range(1000)], "formats": ["fp8", "nvfp4"]}
    large["options"] = [{}, {"quantize": {"lm_head": True}}, {"quantize": {"dtype": "keep"}}]
    document = problem(api.post("/v1/batches", json=large), "invalid-request")
    assert wheres(document) == {"$.sources"}
    assert "6000" in document["detail"]
    mixed = {**MATRIX, "formats": ["fp8", "auto"], "options": [{}, {"auto": {"max_size": 0.5}}]}
    document = problem(api.post("/v1/batches", json=mixed), "invalid-request")
    assert wheres(document) == {"$.formats[0].options[1]", "$.formats[1].options[0]"}
    heads = {**MATRIX, "formats": ["keep"], "options": [{"head": {"method": "rtn"}}, {"name": "none"}]}
    document = problem(api.post("/v1/batches", json=heads), "invalid-request")
    assert wheres(document) == {"$.formats[0].options[1]"}
    past = {**MATRIX, "deadline": "2020-01-01T00:00:00Z"}
    assert wheres(problem(api.post("/v1/batches", json=past), "invalid-request")) == {"$.deadline"}


def test_a_key_makes_one_batch(api: httpx.Client) -> None:
    headers = {"Idempotency-Key": "k"}
    first = api.post("/v1/batches", json=MATRIX, headers=headers)
    second = api.post("/v1/batches", json=MATRIX, headers=headers)
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.headers["idempotency-replayed"] == "true"
    assert second.json()["id"] == first.json()["id"]
    other = {**MATRIX, "formats": ["fp8"]}
    problem(api.post("/v1/batches", json=other, headers=headers), "idempotency-mismatch")
    # The same key of a job is another.
    spec = {"source": {"repo": "org/a"}, "format": "fp8"}
    assert api.post("/v1/jobs", json=spec, headers=headers).status_code == 201


def test_lists_show_batches_without_their_matrix(api: httpx.Client) -> None:
    made = [submit(api, labels={"n": str(number)}) for number in range(3)]
    page = api.get("/v1/batches", params={"limit": 2})
    assert "spec" not in page.json()["items"][0]
    found = BatchPage.model_validate_json(page.content, extra="ignore")
    assert [each.id for each in found.items] == [made[2].id, made[1].id]
    rest = BatchPage.model_validate_json(
        api.get("/v1/batches", params={"limit": 2, "cursor": found.next_cursor}).content, extra="ignore"
    )
    assert [each.id for each in rest.items] == [made[0].id]
    labelled = api.get("/v1/batches", params={"label": "n=1", "state": "queued"}).json()["items"]
    assert [each["id"] for each in labelled] == [made[1].id]


def test_cancel_and_retry_of_the_whole(api: httpx.Client, live: Live) -> None:
    batch = submit(api)
    canceled = api.post(f"/v1/batches/{batch.id}/cancel").json()
    assert (canceled["state"], canceled["reason"], canceled["outcome"]) == ("canceled", "canceled_by_user", "canceled")
    assert canceled["counts"]["canceled"] == 4
    retried = api.post(f"/v1/batches/{batch.id}/retry").json()
    assert (retried["state"], retried["reason"], retried["counts"]["queued"]) == ("queued", None, 4)
    problem(api.post(f"/v1/batches/{batch.id}/retry"), "conflict")
    unknown = "s" + "0" * 26
    for call in (api.get(f"/v1/batches/{unknown}"), api.post(f"/v1/batches/{unknown}/cancel")):
        problem(call, "not-found")
    with live.client(live.tokens[Scope.READ]) as reader:
        assert reader.get(f"/v1/batches/{batch.id}").status_code == 200
        problem(reader.post(f"/v1/batches/{batch.id}/cancel"), "forbidden")


SUMMARY = {"source_bytes": 1000, "variant_bytes": 500, "tensors_quantized": 3, "tensors_kept": 1}
SUMMARY |= {"checks_passed": 9, "checks_warned": 0, "checks_failed": 0}


def measured(size: int, al: float, verdict: str = "passed") -> Summary:
    acceptance = {
        "job": "j",
        "verdict": verdict,
        "al": al,
        "control_al": 3.0,
        "change": {"value": (al - 3) / 2, "low": (al - 3) / 2 - 0.05, "high": (al - 3) / 2 + 0.05, "confidence": 0.95},
        "num_speculative_tokens": 3,
        "emulated": False,
        "receipts": [],
    }
    return Summary.model_validate({**SUMMARY, "variant_bytes": size, "acceptance": acceptance})


def test_the_report_marks_the_front(api: httpx.Client, clean_redis: str) -> None:
    batch = submit(api, sources=[{"repo": f"org/d{n}"} for n in range(7)], formats=["fp8"], max_running=7)
    worker = WorkerLedger.connect(clean_redis)
    points = [
        (Outcome.SUCCEEDED, measured(500, 2.9), True),
        (Outcome.SUCCEEDED, measured(500, 2.8), False),
        (Outcome.SUCCEEDED, measured(300, 2.5), True),
        (Outcome.SUCCEEDED, measured(600, 2.9), False),
        (Outcome.FAILED, measured(100, 2.95, "failed"), False),
        (Outcome.SUCCEEDED, Summary.model_validate(SUMMARY), None),
    ]
    for item, (outcome, summary, _) in zip(items(api, batch).items, points, strict=False):
        assert item.job is not None
        held = claim(worker, item.job)
        worker.resolve(held, RESOLVED)
        reason = Reason.GATE_FAILED if outcome is Outcome.FAILED else None
        refusal = ProblemError("gate-failed", "too low").problem if reason else None
        worker.finish(held, outcome, reason, refusal, summary=summary)
    worker.close()

    path = f"/v1/batches/{batch.id}/report"
    report = BatchReport.model_validate_json(api.get(path).content, extra="ignore")
    assert report.batch.state is JobState.RUNNING
    assert [row.pareto for row in report.rows] == [*(front for *_, front in points), None]
    first, failed, waiting = report.rows[0], report.rows[4], report.rows[6]
    assert (first.ratio, first.al, first.control_al) == (0.5, 2.9, 3.0)
    # The change of accepted tokens per draft, which are 2 of the control's.
    assert (first.al_low, first.al_high) == (pytest.approx(2.8), pytest.approx(3.0))
    assert (first.commit, first.family) == (RESOLVED.source.commit, RESOLVED.family)
    assert (failed.reason, failed.problem, failed.detail) == (Reason.GATE_FAILED, "gate-failed", "too low")
    assert (waiting.state, waiting.al, waiting.variant_bytes) == (JobState.QUEUED, None, None)

    for asked in (api.get(path, params={"format": "csv"}), api.get(path, headers={"Accept": "text/csv"})):
        assert asked.headers["content-type"].startswith("text/csv")
        rows = list(csv.DictReader(io.StringIO(asked.text)))
        assert [row["source"] for row in rows] == [f"org/d{n}" for n in range(7)]
        assert [row["pareto"] for row in rows] == ["true", "false", "true", "false", "false", "", ""]
        assert float(rows[0]["al_high"]) == report.rows[0].al_high
        assert (rows[0]["revision"], rows[6]["variant_bytes"], rows[4]["verdict"]) == ("main", "", "failed")
    assert api.get(path, headers={"Accept": "text/csv", "X": "1"}, params={"format": "json"}).json()["rows"]


def test_the_reaper_goes_on_with_a_batch_whose_request_died(api: httpx.Client, live: Live) -> None:
    spec = Batch.model_validate_json(api.get(f"/v1/batches/{submit(api).id}").content, extra="ignore").spec
    ledger = Ledger.connect(live.settings.redis_url)

    async def half() -> str:
        batch_id, _ = await ledger.submit_batch(spec, owner="x", cap=1)
        await ledger.close()
        return batch_id

    batch_id = asyncio.run(half())

    def made() -> bool:
        return bool(api.get(f"/v1/batches/{batch_id}").json()["made"] == 4)

    assert not made()
    eventually(made, timeout=10 + 5 * IDLE_SECONDS)
    assert json.loads(api.get(f"/v1/batches/{batch_id}").content)["counts"]["queued"] == 4
