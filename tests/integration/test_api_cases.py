"""What a request may ask for by name, and what is kept apart."""

from typing import Any

import httpx
import pytest

from draftmill.formats import Format
from tests.integration.test_api import SPEC, problem, wheres

Revisions = tuple[str | None, str | None]


@pytest.mark.parametrize("format", ["awq", "int4_awq", "gptq", "int4", "int8", "W4A8", "FP8", ""])
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/preflight"])
def test_c74_only_formats_that_an_engine_reads_are_offered(api: httpx.Client, path: str, format: str) -> None:
    document = problem(api.post(path, json={**SPEC, "format": format}), "invalid-request")
    assert wheres(document) == {"$.format"}
    assert all(repr(each.value) in document["offenders"][0]["message"] for each in Format)
    assert {each["name"] for each in api.get("/v1/formats").json()} == set(Format)


@pytest.mark.parametrize("given", [("v2", None), (None, "v2"), ("v1", "v2")])
def test_c80_drafter_and_target_have_revisions_of_their_own(api: httpx.Client, given: Revisions) -> None:
    source, target = (_at(repo, revision) for repo, revision in zip(("org/drafter", "org/target"), given, strict=True))
    body = {**SPEC, "source": source, "benchmark": {"target": target, "num_speculative_tokens": 3}}
    response = api.post("/v1/jobs", json=body)
    assert response.status_code == 201, response.text
    spec = response.json()["spec"]
    kept = (spec["source"]["revision"], spec["benchmark"]["target"]["revision"])
    assert kept == tuple(revision or "main" for revision in given)


def _at(repo: str, revision: str | None) -> dict[str, Any]:
    return {"repo": repo} | ({} if revision is None else {"revision": revision})
