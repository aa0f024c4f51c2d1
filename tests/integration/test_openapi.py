"""The committed OpenAPI document is current and says what the API does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from draftmill.problems import KINDS

DOCUMENT = Path(__file__).parents[2] / "service" / "openapi.json"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DOCUMENT.read_text())
    return loaded


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path, operation) for path, item in document["paths"].items() for operation in item.values()]


def test_document_is_current() -> None:
    """`make openapi` writes it."""
    command = [sys.executable, "-m", "draftmill_service.cli", "openapi"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed == DOCUMENT.read_text()


def test_every_operation_documents_its_problems(document: dict[str, Any]) -> None:
    for path, operation in operations(document):
        if path == "/healthz":
            continue
        refusals = {status: answer for status, answer in operation["responses"].items() if int(status) >= 400}
        assert "503" in refusals, path
        for answer in refusals.values():
            assert list(answer["content"]) == ["application/problem+json"]
            for named in answer["description"].split("`")[1::2]:
                assert named in KINDS
        if path != "/readyz":
            assert {"401", "403"} <= set(refusals), path


def test_security_is_required_but_for_health(document: dict[str, Any]) -> None:
    assert document["security"] == [{"key": []}]
    open_paths = {path for path, operation in operations(document) if operation.get("security") == []}
    assert open_paths == {"/healthz", "/readyz"}


def test_operation_ids_are_unique(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, operation in operations(document)]
    assert len(ids) == len(set(ids))
