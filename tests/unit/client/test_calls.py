"""The requests that go out, and the answers that come back, for both clients."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from draftmill import Format, JobState, PathSource, ProblemError, ProtocolError, QuantizeOptions
from draftmill.formats import FORMATS
from draftmill.plans import Family
from draftmill.problems import URN, Offender, Problem
from tests.unit.client.conftest import KEY, SPEC, make_job
from tests.unit.client.scripted import Answer, Script, Scripted, document, job_answer, problem

Connect = Callable[[Script], tuple[Any, Scripted]]
JOB = make_job()


def test_submit_sends_the_spec_with_a_key_and_authorization(connect: Connect) -> None:
    client, server = connect([job_answer(JOB)])
    assert client.submit(SPEC) == JOB
    assert client.submit(SPEC, idempotency_key="mine") == JOB
    first, second = server.seen
    assert (first.method, first.path) == ("POST", "/v1/jobs")
    assert json.loads(first.body) == SPEC.model_dump(mode="json")
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert first.headers["content-type"] == "application/json"
    assert len(first.headers["idempotency-key"]) == 36
    assert second.headers["idempotency-key"] == "mine"


@pytest.mark.parametrize(
    ("call", "method", "path"),
    [
        ("get", "GET", f"/v1/jobs/{JOB.id}"),
        ("cancel", "POST", f"/v1/jobs/{JOB.id}/cancel"),
        ("retry", "POST", f"/v1/jobs/{JOB.id}/retry"),
    ],
)
def test_calls_about_one_job(connect: Connect, call: str, method: str, path: str) -> None:
    client, server = connect([job_answer(JOB)])
    assert getattr(client, call)(JOB) == JOB
    assert getattr(client, call)(JOB.id) == JOB
    assert {(seen.method, seen.path) for seen in server.seen} == {(method, path)}


def test_a_job_id_cannot_reach_another_path(connect: Connect) -> None:
    client, server = connect([problem("not-found", 404)])
    with pytest.raises(ProblemError):
        client.get("../../metrics?x=1#y")
    assert server.seen[0].path == "/v1/jobs/..%2F..%2Fmetrics%3Fx%3D1%23y"


def test_list_follows_cursors_and_keeps_its_filters(connect: Connect) -> None:
    second = make_job(JobState.FAILED, "j" + "1" * 26)
    client, server = connect(
        [
            document({"items": [JOB.model_dump(mode="json")], "next_cursor": "a b"}),
            document({"items": [second.model_dump(mode="json")], "next_cursor": None}),
        ]
    )
    found = client.list(
        state=JobState.FAILED, format=Format.FP8, family=Family.EAGLE3, labels=("team=x&y", "z"), page_size=1
    )
    assert list(found) == [JOB, second]
    query = "state=failed&format=fp8&family=eagle3&limit=1"
    labels = "label=team%3Dx%26y&label=z"
    assert server.seen[0].path == f"/v1/jobs?{query}&{labels}"
    assert server.seen[1].path == f"/v1/jobs?{query}&cursor=a+b&{labels}"


def test_preflight_sends_no_labels_or_deadline(connect: Connect) -> None:
    client, server = connect([document({"ok": False, "problem": None})])
    answer = client.preflight(PathSource(path="/data/x"), Format.NVFP4, QuantizeOptions(exclude=("*fc*",)))
    assert not answer.ok
    assert json.loads(server.seen[0].body) == {
        "source": {"path": "/data/x"},
        "format": "nvfp4",
        "quantize": {
            "exclude": ["*fc*"],
            "lm_head": False,
            "scales": "fused",
            "dtype": "bfloat16",
            "merge": False,
            "nvfp4_scale_search": False,
        },
    }


def test_formats_are_read_as_data(connect: Connect) -> None:
    client, _ = connect([document([spec.model_dump(mode="json") for spec in FORMATS.values()])])
    assert client.formats() == tuple(FORMATS.values())


def test_events_are_asked_for_by_id(connect: Connect) -> None:
    client, server = connect([document({"items": [], "last_id": "5-0"})])
    assert client.events(JOB, after="5-0", limit=7).last_id == "5-0"
    assert server.seen[0].path == f"/v1/jobs/{JOB.id}/events?after=5-0&limit=7"


def test_fields_of_a_newer_service_are_dropped(connect: Connect) -> None:
    newer = JOB.model_dump(mode="json") | {"color": "green"}
    newer["spec"] = newer["spec"] | {"mirrors": ["a"]}
    client, _ = connect([document(newer)])
    assert client.get(JOB) == JOB


def test_a_problem_becomes_an_exception_with_all_offenders(connect: Connect) -> None:
    offenders = [{"where": "$.format", "message": "unknown"}, {"where": "$.labels", "message": "too many", "value": 40}]
    client, _ = connect([problem("invalid-request", 422, "two fields are wrong", offenders=offenders)])
    with pytest.raises(ProblemError) as caught:
        client.submit(SPEC)
    assert caught.value.problem.slug == "invalid-request"
    assert caught.value.problem.offenders == (
        Offender(where="$.format", message="unknown"),
        Offender(where="$.labels", message="too many", value=40),
    )


def test_a_problem_of_a_type_unknown_here_is_still_a_problem(connect: Connect) -> None:
    client, _ = connect([problem("made-up-later", 418, "tea", hint="new field")])
    with pytest.raises(ProblemError) as caught:
        client.get(JOB)
    assert caught.value.problem == Problem(type=URN + "made-up-later", title="made-up-later", status=418, detail="tea")
    assert pickle.loads(pickle.dumps(caught.value)).problem == caught.value.problem


@pytest.mark.parametrize(
    "answer",
    [
        Answer(404, b"<h1>nginx</h1>", {"Content-Type": "text/html"}),
        Answer(301, b"", {"Location": "/elsewhere"}),
        Answer(200, b"not json"),
        document({"id": 1}),
        Answer(400, b"{}", {"Content-Type": "application/problem+json"}),
    ],
)
def test_an_answer_of_another_server_is_a_protocol_error(connect: Connect, answer: Answer) -> None:
    client, _ = connect([answer])
    with pytest.raises(ProtocolError):
        client.get(JOB)
