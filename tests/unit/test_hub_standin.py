"""The Hub stand-in, as the real huggingface_hub client sees it."""

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile

from tests.conftest import ServedHub
from tests.fixtures.hub import Repo, Token
from tests.support import eventually

ROOT = Path(__file__).parents[2]
WEIGHTS = bytes(range(256)) * 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    (folder / "code").mkdir(parents=True)
    (folder / "config.json").write_text('{"a": 1}\n')
    (folder / "code" / "modeling.py").write_text("x = 1\n")
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    return folder


@pytest.fixture
def repo(hub: ServedHub, folder: Path) -> Repo:
    return hub.add("org/drafter", folder)


def test_snapshot_has_the_served_bytes(hub: ServedHub, repo: Repo, folder: Path, tmp_path: Path) -> None:
    got = Path(snapshot_download("org/drafter", cache_dir=tmp_path / "cache", endpoint=hub.url, token=False))
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {path.relative_to(got).as_posix() for path in got.rglob("*") if path.is_file()} == names
    assert all((got / name).read_bytes() == (folder / name).read_bytes() for name in names)
    assert got.name == repo.refs["main"]
    assert hub.log.bytes_sent(path="*.safetensors") == len(WEIGHTS)


def test_listing_agrees_with_the_files(hub: ServedHub, repo: Repo, folder: Path) -> None:
    api = HfApi(endpoint=hub.url, token=False)
    info = api.model_info("org/drafter", revision="main", files_metadata=True)
    files = {f.path: f for f in api.list_repo_tree("org/drafter", recursive=True) if isinstance(f, RepoFile)}
    assert info.sha == repo.refs["main"]
    assert {sibling.rfilename: sibling.size for sibling in info.siblings or ()} == {n: f.size for n, f in files.items()}
    lfs = files["model.safetensors"].lfs
    assert lfs is not None
    assert lfs.sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    git = subprocess.run(["git", "hash-object", folder / "config.json"], check=True, capture_output=True, text=True)
    assert files["config.json"].blob_id == git.stdout.strip()
    assert files["config.json"].lfs is None


def test_long_listings_come_in_pages(hub: ServedHub, repo: Repo) -> None:
    hub.hub.page_size = 1
    names = {entry.path for entry in HfApi(endpoint=hub.url, token=False).list_repo_tree("org/drafter", recursive=True)}
    assert names == {"config.json", "model.safetensors", "code", "code/modeling.py"}
    assert len(hub.log.find(kind="tree")) == 4


def test_branches_and_commits(hub: ServedHub, repo: Repo, folder: Path, tmp_path: Path) -> None:
    first = repo.refs["main"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"a": 2}\n')
    second = repo.commit(other, ref="next")
    for revision, content in ((first, '{"a": 1}\n'), ("next", '{"a": 2}\n'), (second, '{"a": 2}\n')):
        path = hf_hub_download(
            "org/drafter", "config.json", revision=revision, cache_dir=tmp_path / "c", endpoint=hub.url, token=False
        )
        assert Path(path).read_text() == content
    assert repo.commit(folder) == first


def test_missing_things_are_told_apart(hub: ServedHub, repo: Repo, tmp_path: Path) -> None:
    api = HfApi(endpoint=hub.url, token=False)
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("org/none")
    with pytest.raises(RevisionNotFoundError):
        api.model_info("org/drafter", revision="none")
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download("org/drafter", "none.json", cache_dir=tmp_path, endpoint=hub.url, token=False)


def test_private_repositories_look_missing_without_a_token(hub: ServedHub, folder: Path) -> None:
    hub.add("org/secret", folder, private=True)
    hub.hub.tokens |= {"hf_owner": Token(private={"org/secret"}), "hf_other": Token()}
    assert HfApi(endpoint=hub.url, token="hf_owner").model_info("org/secret").private
    for token in (False, "hf_other"):
        with pytest.raises(RepositoryNotFoundError):
            HfApi(endpoint=hub.url, token=token).model_info("org/secret")
    with pytest.raises(HfHubHTTPError, match="Invalid credentials") as caught:
        HfApi(endpoint=hub.url, token="hf_unknown").model_info("org/secret")
    assert not isinstance(caught.value, RepositoryNotFoundError)


def test_gated_repositories_list_but_do_not_download(hub: ServedHub, folder: Path, tmp_path: Path) -> None:
    hub.add("org/gated", folder, gated=True)
    hub.hub.tokens |= {
        "hf_accepted": Token(accepted={"org/gated"}),
        "hf_not_yet": Token(),
        "hf_no_scope": Token(accepted={"org/gated"}, gated_scope=False),
    }
    assert HfApi(endpoint=hub.url, token=False).model_info("org/gated").gated

    def fetch(token: str | bool) -> str:
        return hf_hub_download("org/gated", "config.json", cache_dir=tmp_path, endpoint=hub.url, token=token)

    for token in (False, "hf_not_yet"):
        with pytest.raises(GatedRepoError):
            fetch(token)
    with pytest.raises(LocalEntryNotFoundError) as caught:
        fetch("hf_no_scope")
    # The client hides the answer behind a connection problem.
    assert "fine-grained token settings" in str(caught.value.__cause__)
    assert Path(fetch("hf_accepted")).read_text() == '{"a": 1}\n'


def test_tokens_never_reach_the_storage_host(hub: ServedHub, repo: Repo, tmp_path: Path) -> None:
    hub.hub.tokens["hf_any"] = Token()
    hf_hub_download("org/drafter", "model.safetensors", cache_dir=tmp_path, endpoint=hub.url, token="hf_any")
    assert [r.authorized for r in hub.log.find(kind="cdn")] == [False]
    assert all(r.authorized for r in hub.log.find(kind="resolve"))


@pytest.mark.parametrize(
    ("asked", "status", "expected"),
    [
        ("bytes=0-7", 206, WEIGHTS[:8]),
        ("bytes=16380-", 206, WEIGHTS[16380:]),
        ("bytes=-4", 206, WEIGHTS[-4:]),
        ("bytes=16384-", 416, b""),
    ],
)
def test_ranges(hub: ServedHub, repo: Repo, asked: str, status: int, expected: bytes) -> None:
    url = f"{hub.url}/org/drafter/resolve/{repo.refs['main']}/model.safetensors"
    answer = httpx.get(url, headers={"Range": asked}, follow_redirects=True)
    assert (answer.status_code, answer.content) == (status, expected)
    assert [r.range for r in hub.log.find(kind="cdn")] == [asked]
    if status == 206:
        assert answer.headers["Content-Range"].endswith("/16384")


def test_rate_limits_and_server_errors_pass(hub: ServedHub, repo: Repo) -> None:
    repo.faults.rate_limited, repo.faults.server_errors = 1, 1
    list(HfApi(endpoint=hub.url, token=False).list_repo_tree("org/drafter"))
    assert [r.status for r in hub.log.find(kind="tree")] == [429, 503, 200]


def test_a_dropped_connection_is_resumed(hub: ServedHub, repo: Repo, tmp_path: Path) -> None:
    repo.faults.drops, repo.faults.drop_after, repo.faults.only = 1, 1000, "*.safetensors"
    got = hf_hub_download("org/drafter", "model.safetensors", cache_dir=tmp_path, endpoint=hub.url, token=False)
    assert Path(got).read_bytes() == WEIGHTS
    first, _ = hub.log.downloads(path="*.safetensors")
    assert first.sent == 1000


def test_wrong_bytes_keep_length_and_etag(hub: ServedHub, repo: Repo) -> None:
    url = f"{hub.url}/org/drafter/resolve/main/config.json"
    right = httpx.get(url)
    repo.faults.wrong_bytes = 1
    wrong = httpx.get(url)
    assert wrong.content != right.content
    assert (len(wrong.content), wrong.headers["ETag"]) == (len(right.content), right.headers["ETag"])
    assert httpx.get(url).content == right.content


def test_slow_bytes_can_be_hurried(hub: ServedHub, repo: Repo) -> None:
    repo.faults.bytes_per_second = 0
    url = f"{hub.url}/org/drafter/resolve/main/model.safetensors"
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(url, follow_redirects=True, timeout=0.3)
    got: list[bytes] = []
    repo.faults.bytes_per_second = 100
    reader = threading.Thread(target=lambda: got.append(httpx.get(url, follow_redirects=True, timeout=10).content))
    reader.start()
    eventually(lambda: hub.log.bytes_sent() > 0)
    assert not got
    repo.faults.bytes_per_second = None
    reader.join(timeout=10)
    assert got == [WEIGHTS]


def test_a_listing_can_leave_files_out(hub: ServedHub, repo: Repo) -> None:
    repo.faults.hide = ("*.safetensors",)
    names = {entry.path for entry in HfApi(endpoint=hub.url, token=False).list_repo_tree("org/drafter", recursive=True)}
    assert "model.safetensors" not in names
    assert httpx.get(f"{hub.url}/org/drafter/resolve/main/model.safetensors", follow_redirects=True).is_success


def test_unauthorized_answers(hub: ServedHub, repo: Repo) -> None:
    repo.faults.unauthorized = 1
    api = HfApi(endpoint=hub.url, token=False)
    with pytest.raises(HfHubHTTPError, match="401"):
        api.model_info("org/drafter")
    assert api.model_info("org/drafter").sha


def test_command_line_serves_folders(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fixtures.hub", "--repo", f"org/drafter={folder}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            got = snapshot_download("org/drafter", cache_dir=tmp_path / "cache", endpoint=url, token=False)
            assert (Path(got) / "model.safetensors").read_bytes() == WEIGHTS
        finally:
            process.terminate()
