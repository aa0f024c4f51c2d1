"""Preflight's reading: headers by Range, no weights, whatever the server makes of Range."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.hashing import git_sha1_file, sha256_file
from draftmill_worker.pull import HubSettings, pull_repo, read_remote
from tests.conftest import ServedHub
from tests.unit.pull import builders
from tests.unit.pull.wire import Answer, Seen, wire

REPO = "org/drafter"
COMMIT = "a" * 40


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


@pytest.fixture
def settings(hub: ServedHub) -> HubSettings:
    return HubSettings(endpoint=hub.url, tries=2, backoff_seconds=0.01, answer_seconds=5, stall_seconds=5)


def test_headers_alone_give_the_checkpoint_a_pull_would(hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    """Eight megabytes of weights in two shards; two reads of at most 64 KiB."""
    folder = builders.draft_model(tmp_path / "served", vocab=1 << 19, shards=2)
    (folder / "tokenizer.json").write_text("{}" * 1000)
    repo = hub.add(REPO, folder)
    commit, checkpoint, download_bytes = read_remote(REPO, "main", settings)
    assert commit == repo.refs["main"]
    assert checkpoint == open_checkpoint(folder)
    assert download_bytes == sum(path.stat().st_size for path in folder.iterdir())
    weights = hub.log.downloads(path="*.safetensors")
    wanted = [f"bytes=0-{min(65536, (folder / file).stat().st_size) - 1}" for file in checkpoint.files]
    assert sorted(request.range or "" for request in weights) == sorted(wanted)
    assert hub.log.bytes_sent() < 200_000
    assert hub.log.downloads(path="tokenizer.json") == []


def test_modules_count_towards_the_download(hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    folder = builders.draft_model(tmp_path / "served", auto_map={"AutoModel": "modeling_x.X"})
    (folder / "modeling_x.py").write_text("from .helper import f\n")
    (folder / "helper.py").write_text("#" * 5000)
    (folder / "other.py").write_text("#" * 7000)
    hub.add(REPO, folder)
    _, _, download_bytes = read_remote(REPO, "main", settings)
    pulled = pull_repo(REPO, "main", tmp_path / "sources", settings)
    assert download_bytes == sum(entry.size for entry in pulled.manifest.files)


def test_a_long_header_takes_a_second_read(hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    folder = builders.draft_model(tmp_path / "served")
    tensors = {f"model.extra.{number}.{'x' * 100}.weight": np.ones(2, "f2") for number in range(1000)}
    save_file(tensors, folder / "more.safetensors")
    hub.add(REPO, folder)
    _, checkpoint, _ = read_remote(REPO, "main", settings)
    assert checkpoint == open_checkpoint(folder)
    ranges = [request.range or "" for request in hub.log.downloads(path="more.safetensors")]
    assert ranges[0] == "bytes=0-65535"
    assert ranges[1].startswith("bytes=65536-")
    assert len(ranges) == 2


@pytest.mark.parametrize("length", [1 << 62, 200 << 20, 5000])
def test_a_header_that_claims_too_much_is_not_asked_for(
    hub: ServedHub, settings: HubSettings, tmp_path: Path, length: int
) -> None:
    folder = builders.draft_model(tmp_path / "served")
    (folder / "model.safetensors").write_bytes(length.to_bytes(8, "little") + b"{}" * 100)
    hub.add(REPO, folder)
    with pytest.raises(ProblemError, match="malformed-safetensors"):
        read_remote(REPO, "main", settings)
    assert len(hub.log.downloads(path="model.safetensors")) == 1


def test_many_shards_are_read_a_few_at_a_time(hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    folder = builders.draft_model(tmp_path / "served", shards=10)
    hub.add(REPO, folder)
    assert read_remote(REPO, "main", settings)[1] == open_checkpoint(folder)
    assert len(hub.log.downloads(path="*.safetensors")) == 10


class RawHub:
    """A Hub of one repository whose weight answers the test writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.weights: Any = None

    def __call__(self, seen: Seen) -> Answer:
        if "/revision/" in seen.path:
            return Answer(body=json.dumps({"sha": COMMIT}).encode())
        if "/tree/" in seen.path:
            return Answer(body=json.dumps([self._entry(path) for path in self.folder.iterdir()]).encode())
        path = self.folder / seen.path.rpartition("/")[2]
        if path.suffix == ".safetensors":
            answer: Answer = self.weights(seen, path)
            return answer
        return Answer(body=path.read_bytes())

    def _entry(self, path: Path) -> dict[str, Any]:
        size = path.stat().st_size
        entry = {"type": "file", "path": path.name, "oid": git_sha1_file(path), "size": size}
        return entry | ({"lfs": {"oid": sha256_file(path), "size": size}} if path.suffix == ".safetensors" else {})


@pytest.fixture
def raw(tmp_path: Path) -> RawHub:
    """Thirty-two megabytes of weights."""
    return RawHub(builders.draft_model(tmp_path / "served", vocab=1 << 21))


def chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 16):
            yield chunk


def read(raw: RawHub) -> tuple[Any, list[Seen]]:
    with wire(raw) as (url, seen):
        settings = HubSettings(endpoint=url, tries=2, backoff_seconds=0.01, answer_seconds=2, stall_seconds=2)
        try:
            return read_remote(REPO, "main", settings)[1], weight_requests(seen)
        except ProblemError as error:
            return error.problem.slug, weight_requests(seen)


def weight_requests(seen: list[Seen]) -> list[Seen]:
    return [request for request in seen if request.path.endswith(".safetensors")]


def test_a_server_that_ignores_range_is_cut_off(raw: RawHub) -> None:
    """32 MB are on offer, 64 KiB are wanted; what left is what the sockets' buffers hold."""
    raw.weights = lambda _, path: Answer(body=chunks(path), headers={"Content-Length": str(path.stat().st_size)})
    checkpoint, seen = read(raw)
    assert checkpoint == open_checkpoint(raw.folder)
    assert len(seen) == 1
    assert seen[0].sent < 16 << 20


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Range": "bytes 5-65540/{size}"},
        {"Content-Range": "bytes 0-65535/12"},
        {"Content-Range": "nonsense"},
        {"Content-Range": "bytes -1-5/{size}"},
    ],
)
def test_a_partial_answer_from_elsewhere_is_not_believed(raw: RawHub, headers: dict[str, str]) -> None:
    def weights(_: Seen, path: Path) -> Answer:
        filled = {name: value.format(size=path.stat().st_size) for name, value in headers.items()}
        return Answer(206, path.read_bytes()[:65536], filled)

    raw.weights = weights
    assert read(raw)[0] == "download-corrupt"


def test_a_whole_answer_of_another_length_is_not_believed(raw: RawHub) -> None:
    raw.weights = lambda _, path: Answer(body=path.read_bytes()[:100_000])
    assert read(raw)[0] == "download-corrupt"


def test_an_answer_that_ends_early_is_asked_for_again_and_given_up(raw: RawHub) -> None:
    def weights(_: Seen, path: Path) -> Answer:
        size = path.stat().st_size
        return Answer(206, path.read_bytes()[:100], {"Content-Range": f"bytes 0-65535/{size}", "Content-Length": "100"})

    raw.weights = weights
    slug, seen = read(raw)
    assert (slug, len(seen)) == ("hub-unavailable", 2)


def test_more_bytes_than_asked_for_are_not_read(raw: RawHub) -> None:
    def noise(path: Path) -> Iterator[bytes]:
        yield path.read_bytes()[:65536]
        while True:
            yield random.Random(0).randbytes(65536)

    def weights(_: Seen, path: Path) -> Answer:
        return Answer(206, noise(path), {"Content-Range": f"bytes 0-65535/{path.stat().st_size}"})

    raw.weights = weights
    checkpoint, seen = read(raw)
    assert checkpoint == open_checkpoint(raw.folder)
    assert seen[0].sent < 16 << 20


def test_a_pull_from_a_server_without_ranges(raw: RawHub, tmp_path: Path) -> None:
    """A download that breaks off starts anew there."""
    answers = 0

    def weights(_: Seen, path: Path) -> Answer:
        nonlocal answers
        answers += 1
        data = path.read_bytes()
        # The first is the header's read. The second breaks off.
        return Answer(body=data[: 5 << 20] if answers == 2 else data, headers={"Content-Length": str(len(data))})

    raw.weights = weights
    with wire(raw) as (url, seen):
        settings = HubSettings(endpoint=url, tries=3, backoff_seconds=0.01)
        pulled = pull_repo(REPO, "main", tmp_path / "sources", settings)
    assert (pulled.folder / "model.safetensors").read_bytes() == (raw.folder / "model.safetensors").read_bytes()
    assert [request.headers.get("range") for request in weight_requests(seen)][1:] == [None, f"bytes={5 << 20}-"]


def test_what_follows_the_file_is_not_written(raw: RawHub, tmp_path: Path) -> None:
    def endless(path: Path) -> Iterator[bytes]:
        yield from chunks(path)
        while True:
            yield b"\0" * 65536

    raw.weights = lambda _, path: Answer(body=endless(path))
    with wire(raw) as (url, _):
        pulled = pull_repo(REPO, "main", tmp_path / "sources", HubSettings(endpoint=url, tries=2))
    assert (pulled.folder / "model.safetensors").read_bytes() == (raw.folder / "model.safetensors").read_bytes()
