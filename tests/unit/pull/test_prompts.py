"""Files of prompts: from an allowed folder, and from a dataset over HTTP."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftmill.benchmarks import PromptSet
from draftmill.jobs import PathSource, RepoSource
from draftmill.problems import ProblemError
from draftmill_worker.pull import HubSettings
from draftmill_worker.pull.prompts import bring_prompts

COMMIT = "0123456789" * 4
DATA = b'{"prompt": "one"}\n'
ANSWERS = {
    "/api/datasets/org/bench/revision/main": json.dumps({"sha": COMMIT}).encode(),
    f"/datasets/org/bench/resolve/{COMMIT}/mt/question.jsonl": DATA,
}


class Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = ANSWERS.get(self.path)
        self.send_response(404 if body is None else 200)
        if body is None:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def hub() -> Iterator[HubSettings]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield HubSettings(endpoint=f"http://127.0.0.1:{server.server_port}", stall_seconds=5)
        server.shutdown()


def _asked(file: str = "mt/question.jsonl") -> PromptSet:
    return PromptSet(repo=RepoSource(repo="org/bench"), file=file)


def test_a_dataset_is_pulled_at_its_commit(hub: HubSettings, tmp_path: Path) -> None:
    kept = bring_prompts(_asked(), tmp_path, (), hub)
    assert kept is not None
    assert kept.read_bytes() == DATA
    assert bring_prompts(_asked(), tmp_path, (), hub) == kept


def test_what_the_dataset_lacks_has_a_name(hub: HubSettings, tmp_path: Path) -> None:
    with pytest.raises(ProblemError):
        bring_prompts(_asked("other.jsonl"), tmp_path, (), hub)
    with pytest.raises(ProblemError, match="unsafe-path"):
        bring_prompts(_asked("a/../../b.jsonl"), tmp_path, (), hub)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_path_must_be_allowed_links_followed(hub: HubSettings, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside.jsonl"
    root.mkdir()
    outside.write_bytes(DATA)
    (root / "mine.jsonl").write_bytes(DATA)
    (root / "link.jsonl").symlink_to(outside)
    sources = tmp_path / "sources"

    def bring(path: Path) -> Path | None:
        return bring_prompts(PromptSet(path=PathSource(path=str(path))), sources, (root,), hub)

    kept = bring(root / "mine.jsonl")
    assert kept is not None
    assert kept.read_bytes() == DATA
    for path in (outside, root / "link.jsonl"):
        with pytest.raises(ProblemError, match="path-not-allowed"):
            bring(path)
    with pytest.raises(ProblemError, match="path-not-found"):
        bring(root / "missing.jsonl")
    with pytest.raises(ProblemError, match="path-not-allowed"):
        bring(root)


def test_a_set_that_ships_needs_no_file(hub: HubSettings, tmp_path: Path) -> None:
    assert bring_prompts(PromptSet(), tmp_path, (), hub) is None
