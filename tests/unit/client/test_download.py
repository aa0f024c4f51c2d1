"""Downloads: whole or not at all, resumed where they broke, never outside the folder."""

import fcntl
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftmill import Artifacts, DownloadError, FolderTakenError, ManifestFile, ProblemError, TransportError
from draftmill._paths import places
from tests.unit.client.conftest import make_job
from tests.unit.client.scripted import Answer, Script, Scripted, Seen, document

Connect = Callable[[Script], tuple[Any, Scripted]]
JOB = make_job()
WEIGHTS = bytes(range(256)) * 4096
CONFIG = b'{"architectures": ["X"]}'
FILES = {"model.safetensors": WEIGHTS, "config.json": CONFIG, "code/modeling.py": b"", "tokenizer.json": b"{}"}


def listed(path: str, data: bytes) -> ManifestFile:
    return ManifestFile(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest())


class Store:
    """Serves files with Range and If-Range as the service does; `first` answers a file's first request instead."""

    def __init__(self, files: dict[str, bytes] = FILES, first: dict[str, Answer] | None = None) -> None:
        self.files = files
        self.first = dict(first or {})
        self.manifest = Artifacts(variant="a" * 64, files=tuple(listed(path, data) for path, data in files.items()))

    def __call__(self, seen: Seen) -> Answer:
        path = seen.path.removeprefix(f"/v1/jobs/{JOB.id}/artifacts").lstrip("/")
        if not path:
            return document(self.manifest.model_dump_json())
        if path in self.first:
            return self.first.pop(path)
        data = self.files[path]
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        wanted = re.fullmatch(r"bytes=(\d+)-", seen.headers.get("range", ""))
        if wanted and seen.headers.get("if-range") == etag:
            start = int(wanted[1])
            return Answer(
                206, data[start:], {"ETag": etag, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
            )
        return Answer(200, data, {"ETag": etag})


def ranges(server: Scripted, path: str) -> list[str | None]:
    return [seen.headers.get("range") for seen in server.seen if seen.path.endswith("/" + path)]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def part_of(folder: Path, path: str, data: bytes) -> Path:
    return folder / f"{path}.{hashlib.sha256(data).hexdigest()[:12]}.part"


@pytest.mark.parametrize("parallel", [1, 3])
def test_every_file_arrives_whole(connect: Connect, tmp_path: Path, parallel: int) -> None:
    client, _ = connect(Store())
    seen: dict[str, int] = {}
    done = client.download(
        JOB, tmp_path / "out", parallel=parallel, progress=lambda path, have, total: seen.update({path: have})
    )
    assert tree(tmp_path / "out") == FILES
    assert done.received_bytes == sum(map(len, FILES.values()))
    assert done.folder == tmp_path / "out"
    assert seen == {path: len(data) for path, data in FILES.items()}


def test_what_is_there_and_right_is_not_sent_again(connect: Connect, tmp_path: Path) -> None:
    client, server = connect(Store())
    client.download(JOB, tmp_path)
    (tmp_path / "config.json").write_bytes(CONFIG.replace(b"X", b"Y"))
    again = client.download(JOB, tmp_path)
    assert again.received_bytes == len(CONFIG)
    assert tree(tmp_path) == FILES
    assert len(ranges(server, "model.safetensors")) == 1


def test_a_broken_connection_is_resumed_by_range(connect: Connect, tmp_path: Path) -> None:
    client, server = connect(Store(first={"model.safetensors": Answer(200, WEIGHTS, cut=700_000)}))
    client.download(JOB, tmp_path)
    assert tree(tmp_path) == FILES
    first, second = ranges(server, "model.safetensors")
    assert first is None
    assert second is not None
    assert 0 < int(second.removeprefix("bytes=").removesuffix("-")) <= 700_000


def test_a_part_of_an_earlier_run_is_continued(connect: Connect, tmp_path: Path) -> None:
    part_of(tmp_path, "model.safetensors", WEIGHTS).write_bytes(WEIGHTS[:1000])
    client, server = connect(Store())
    done = client.download(JOB, tmp_path)
    assert ranges(server, "model.safetensors") == ["bytes=1000-"]
    assert tree(tmp_path) == FILES
    assert done.received_bytes == sum(map(len, FILES.values())) - 1000


def test_a_corrupt_part_is_fetched_again_from_the_start(connect: Connect, tmp_path: Path) -> None:
    part_of(tmp_path, "model.safetensors", WEIGHTS).write_bytes(b"\xff" * 1000)
    client, server = connect(Store())
    client.download(JOB, tmp_path)
    assert ranges(server, "model.safetensors") == ["bytes=1000-", None]
    assert tree(tmp_path) == FILES


def test_a_part_of_another_variant_is_not_continued(connect: Connect, tmp_path: Path) -> None:
    part_of(tmp_path, "model.safetensors", b"another").write_bytes(b"another")
    client, server = connect(Store())
    client.download(JOB, tmp_path)
    assert ranges(server, "model.safetensors") == [None]


def test_a_server_without_ranges_sends_all_and_that_works(connect: Connect, tmp_path: Path) -> None:
    part_of(tmp_path, "model.safetensors", WEIGHTS).write_bytes(WEIGHTS[:1000])
    client, _ = connect(Store(first={"model.safetensors": Answer(200, WEIGHTS)}))
    client.download(JOB, tmp_path)
    assert tree(tmp_path) == FILES


def test_a_range_from_elsewhere_is_refused(connect: Connect, tmp_path: Path) -> None:
    part_of(tmp_path, "model.safetensors", WEIGHTS).write_bytes(WEIGHTS[:1000])
    moved = Answer(206, WEIGHTS[999:], {"Content-Range": f"bytes 999-{len(WEIGHTS) - 1}/{len(WEIGHTS)}"})
    client, _ = connect(Store(first={"model.safetensors": moved}))
    with pytest.raises(DownloadError, match="from 1000"):
        client.download(JOB, tmp_path)


@pytest.mark.parametrize("wrong", [WEIGHTS[:-1] + b"x", WEIGHTS + b"x"])
def test_wrong_bytes_never_get_the_files_name(connect: Connect, tmp_path: Path, wrong: bytes) -> None:
    client, _ = connect(Store(first={"model.safetensors": Answer(200, wrong)}))
    with pytest.raises(DownloadError, match=r"model\.safetensors"):
        client.download(JOB, tmp_path)
    assert "model.safetensors" not in tree(tmp_path)
    assert not list(tmp_path.rglob("model*.part"))


def test_giving_up_keeps_the_part_for_the_next_time(connect: Connect, tmp_path: Path) -> None:
    def broken(seen: Seen) -> Answer:
        if "safetensors" not in seen.path:
            return Store()(seen)
        return Answer(hang_up=True) if "range" in seen.headers else Answer(200, WEIGHTS, cut=200_000)

    client, _ = connect(broken)
    with pytest.raises(TransportError, match="continues there"):
        client.download(JOB, tmp_path)
    kept = part_of(tmp_path, "model.safetensors", WEIGHTS).read_bytes()
    assert kept
    assert WEIGHTS.startswith(kept)


def test_two_downloads_of_one_file_do_not_mix(connect: Connect, tmp_path: Path) -> None:
    client, _ = connect(Store())
    with part_of(tmp_path, "model.safetensors", WEIGHTS).open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another download"):
            client.download(JOB, tmp_path)


def test_every_unsafe_path_is_named_and_nothing_is_written(connect: Connect, tmp_path: Path) -> None:
    store = Store()
    bad = ["../up", "/etc/passwd", "a//b", "a/../b", "c:\\x", "x\n", "", "config.json", "model.safetensors/x"]
    store.manifest = Artifacts(variant="a" * 64, files=(*store.manifest.files, *(listed(path, b"") for path in bad)))
    client, _ = connect(store)
    with pytest.raises(ProblemError) as caught:
        client.download(JOB, tmp_path / "out")
    offenders = [offender.where for offender in caught.value.problem.offenders]
    assert caught.value.problem.slug == "unsafe-path"
    assert offenders == ["model.safetensors", *bad[:-1]]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("other", ["other.safetensors", "model.safetensors.index.json", "generation_config.json"])
def test_files_of_another_checkpoint_in_the_folder_are_refused_first(
    connect: Connect, tmp_path: Path, other: str
) -> None:
    (tmp_path / other).write_text("{}")
    (tmp_path / "notes.txt").write_text("may stay")
    client, server = connect(Store())
    with pytest.raises(FolderTakenError, match=re.escape(other)):
        client.download(JOB, tmp_path)
    assert set(tree(tmp_path)) == {other, "notes.txt"}
    assert not ranges(server, "model.safetensors")
    (tmp_path / other).unlink()
    client.download(JOB, tmp_path)
    assert set(tree(tmp_path)) == {*FILES, "notes.txt"}


def test_a_link_in_the_folder_does_not_lead_out(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "code").symlink_to(tmp_path / "elsewhere")
    client, _ = connect(Store())
    with pytest.raises(ProblemError, match="unsafe-path"):
        client.download(JOB, tmp_path / "out")
    assert tree(tmp_path / "elsewhere") == {}


def test_a_folder_that_cannot_be_written_is_a_download_error(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    client, _ = connect(Store())
    with pytest.raises(DownloadError, match="cannot store"):
        client.download(JOB, tmp_path / "file")


@given(st.lists(st.text(alphabet="ab./\\\0 é", max_size=12), max_size=4))
def test_places_are_inside_the_folder_or_refused(paths: list[str]) -> None:
    root = Path("/nonexistent/root")
    try:
        found = places(root, [listed(path, b"") for path in paths])
    except ProblemError:
        return
    assert list(found) == paths
    for place in found.values():
        assert place.is_relative_to(root)
        assert place != root
        assert ".." not in place.parts
