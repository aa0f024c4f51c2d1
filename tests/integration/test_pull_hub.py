"""Pulling from the Hub stand-in over HTTP: what lands, what is checked, what a second pull costs."""

import json
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftmill.problems import ProblemError
from draftmill.reports import Manifest
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.pull import HubSettings, pull_repo, read_remote, resolve
from tests.conftest import ServedHub
from tests.fixtures.hub import Repo
from tests.fixtures.hub.repos import Blob
from tests.unit.pull import builders

REPO = "org/drafter"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


@pytest.fixture
def settings(hub: ServedHub) -> HubSettings:
    return HubSettings(endpoint=hub.url, tries=3, backoff_seconds=0.01, stall_seconds=5, answer_seconds=5)


@pytest.fixture
def served(hub: ServedHub, tmp_path: Path) -> Repo:
    folder = builders.draft_model(tmp_path / "served", shards=2)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_text("{}")
    for name in ("README.md", "optimizer.pt", "train.py", "extra/model.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not wanted")
    return hub.add(REPO, folder)


def refused(call: Callable[[], Any]) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        call()
    return caught.value


def leftovers(sources: Path) -> list[str]:
    """What lies under sources, but for locks."""
    return sorted(path.name for path in sources.rglob("*") if path.is_file())


def test_a_pull_lands_whole_and_read_only(served: Repo, settings: HubSettings, tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    seen: list[tuple[int, int]] = []
    pulled = pull_repo(REPO, "main", sources, settings, lambda done, total: seen.append((done, total)))
    commit = served.refs["main"]
    assert (pulled.repo, pulled.commit, pulled.cached) == (REPO, commit, False)
    assert pulled.folder == sources / "org--drafter" / commit
    assert {entry.path for entry in pulled.manifest.files} == {
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert make_manifest(pulled.folder) == pulled.manifest
    beside = sources / "org--drafter" / f"{commit}.manifest.json"
    assert Manifest.model_validate_json(beside.read_bytes()) == pulled.manifest
    for entry in pulled.manifest.files:
        assert stat.S_IMODE((pulled.folder / entry.path).stat().st_mode) == 0o444
    total = sum(entry.size for entry in pulled.manifest.files)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert not list(sources.rglob("*.part*"))
    assert open_checkpoint(pulled.folder).index is not None


def test_a_second_pull_is_one_request(served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    first = pull_repo(REPO, "main", tmp_path / "sources", settings)
    hub.log.clear()
    again = pull_repo(REPO, "main", tmp_path / "sources", settings)
    assert again == replace(first, cached=True)
    assert [request.kind for request in hub.log.find()] == ["info"]


def test_every_request_after_the_first_names_the_commit(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    """C52: main moves between the resolution and the downloads; what lands is one commit, the one recorded."""
    before = served.refs["main"]
    moved = builders.draft_model(tmp_path / "moved", shards=2, rope_theta=1.5)

    listing = resolve(REPO, "main", settings)
    served.commit(moved)
    assert listing.commit == before
    assert resolve(REPO, "main", settings).commit != before
    pulled = pull_repo(REPO, before, tmp_path / "sources", settings)
    assert pulled.commit == before
    assert "rope_theta" not in json.loads((pulled.folder / "config.json").read_text())
    newer = pull_repo(REPO, "main", tmp_path / "sources", settings)
    assert newer.folder != pulled.folder
    assert json.loads((newer.folder / "config.json").read_text())["rope_theta"] == 1.5


def test_a_revision_belongs_to_its_repository(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    """C80: the revision of one repository is no revision of another, and main is not taken instead."""
    hub.add("org/target", builders.draft_model(tmp_path / "target"))
    error = refused(lambda: pull_repo("org/target", served.refs["main"], tmp_path / "sources", settings))
    assert error.problem.slug == "revision-not-found"
    assert leftovers(tmp_path / "sources") == []


def test_tags_and_branches_with_slashes(served: Repo, settings: HubSettings, tmp_path: Path) -> None:
    served.refs["refs/pr/1"] = served.refs["v1.0"] = served.refs["main"]
    assert resolve(REPO, "v1.0", settings).commit == served.refs["main"]
    assert resolve(REPO, "refs/pr/1", settings).commit == served.refs["main"]


@pytest.mark.parametrize(
    ("repo", "revision"), [("../x", "main"), ("org/x", "../main"), ("a/b/c", "main"), ("o--x", "m")]
)
def test_names_that_are_no_repository_are_refused_before_any_request(
    hub: ServedHub, settings: HubSettings, tmp_path: Path, repo: str, revision: str
) -> None:
    assert refused(lambda: pull_repo(repo, revision, tmp_path, settings)).problem.slug == "invalid-request"
    assert refused(lambda: read_remote(repo, revision, settings)).problem.slug == "invalid-request"
    assert hub.log.find() == []


def test_listings_of_several_pages_are_joined_and_bounded(served: Repo, hub: ServedHub, settings: HubSettings) -> None:
    hub.hub.page_size = 3
    assert len(resolve(REPO, "main", settings).files) == 7
    assert len(hub.log.find(kind="tree")) > 2
    assert refused(lambda: resolve(REPO, "main", replace(settings, max_pages=2))).problem.slug == "listing-refused"
    assert refused(lambda: resolve(REPO, "main", replace(settings, max_listed=5))).problem.slug == "listing-refused"


def test_hostile_names_stop_a_pull_before_a_byte_is_written(
    served: Repo, settings: HubSettings, tmp_path: Path
) -> None:
    blob = served.commits[served.refs["main"]]["config.json"]
    for path in ("../../evil.safetensors", "/evil.safetensors", "x\x00.safetensors", "CONFIG.json", "config.JSON"):
        served.commits[served.refs["main"]][path] = replace(blob, path=path)
    error = refused(lambda: pull_repo(REPO, "main", tmp_path / "sources", settings))
    assert error.problem.slug == "unsafe-path"
    assert len(error.problem.offenders) == 5
    assert leftovers(tmp_path / "sources") == []
    assert not list(tmp_path.rglob("evil*"))


def test_a_listing_that_promises_other_bytes_is_not_believed(
    served: Repo, settings: HubSettings, tmp_path: Path
) -> None:
    """C5: hash and size come from the listing at the commit, and each file is measured against it."""
    files = served.commits[served.refs["main"]]
    name = "model-00002-of-00002.safetensors"
    files[name] = replace(files[name], sha256="0" * 64)
    files["tokenizer.json"] = replace(files["tokenizer.json"], oid="0" * 40)
    error = refused(lambda: pull_repo(REPO, "main", tmp_path / "sources", settings))
    assert error.problem.slug == "download-corrupt"
    assert error.problem.offenders[0].where in {name, "tokenizer.json"}
    assert not (tmp_path / "sources" / "org--drafter" / served.refs["main"]).exists()


def test_modules_of_auto_map_come_along_with_packages_and_imports(
    hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    """C72."""
    auto_map = {"AutoTokenizer": [None, "tokenization_x.X"], "AutoModel": "pkg.model.M"}
    folder = builders.draft_model(tmp_path / "served", auto_map=auto_map)
    files = {
        "tokenization_x.py": "from .helper import f",
        "helper.py": "raise SystemExit('imported')",
        "pkg/__init__.py": "",
        "pkg/model.py": "from ..helper import f\nfrom .inner import g",
        "pkg/inner.py": "",
        "pkg/unused.py": "",
        "setup.py": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    hub.add(REPO, folder)
    pulled = pull_repo(REPO, "main", tmp_path / "sources", settings)
    python = {entry.path for entry in pulled.manifest.files if entry.path.endswith(".py")}
    assert python == files.keys() - {"pkg/unused.py", "setup.py"}
    assert make_manifest(pulled.folder) == pulled.manifest


def test_an_auto_map_that_leaves_the_folder_is_refused(hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    """C72."""
    auto_map = {"AutoTokenizer": [None, "tokenization_x.XFast"], "AutoModel": "../../x.Y"}
    hub.add(REPO, builders.draft_model(tmp_path / "served", auto_map=auto_map))
    error = refused(lambda: pull_repo(REPO, "main", tmp_path / "sources", settings))
    assert error.problem.slug == "unsafe-path"
    assert hub.log.downloads(path="*.safetensors") == []


def test_the_disk_budget_is_asked_before_the_first_byte(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    sources = tmp_path / "sources"
    size = sum(resolve(REPO, "main", settings).sizes.values())
    for bound in (replace(settings, disk_budget_bytes=size - 1), replace(settings, reserve_bytes=1 << 60)):
        error = refused(lambda bound=bound: pull_repo(REPO, "main", sources, bound))  # type: ignore[misc]
        assert error.problem.slug == "disk-budget"
        assert error.problem.status == 507
    assert hub.log.downloads() == []
    assert pull_repo(REPO, "main", sources, replace(settings, disk_budget_bytes=size)).cached is False
    # What is there counts against the budget, but not against itself.
    assert pull_repo(REPO, "main", sources, replace(settings, disk_budget_bytes=size)).cached is True


def test_a_changed_byte_in_sources_is_found_and_fetched_again(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    first = pull_repo(REPO, "main", tmp_path / "sources", settings)
    victim = first.folder / "model-00001-of-00002.safetensors"
    victim.chmod(0o644)
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    again = pull_repo(REPO, "main", tmp_path / "sources", settings)
    assert again.cached is False
    assert make_manifest(again.folder) == first.manifest


@pytest.mark.parametrize("damage", ["a file is gone", "a file was added", "the manifest is gone", "no JSON"])
def test_a_damaged_source_is_never_served(served: Repo, settings: HubSettings, tmp_path: Path, damage: str) -> None:
    first = pull_repo(REPO, "main", tmp_path / "sources", settings)
    manifest = first.folder.with_name(f"{first.commit}.manifest.json")
    if damage == "a file is gone":
        (first.folder / "config.json").unlink()
    elif damage == "a file was added":
        (first.folder / "model-00003-of-00002.safetensors").write_bytes(b"")
    elif damage == "the manifest is gone":
        manifest.unlink()
    else:
        manifest.write_text("{")
    again = pull_repo(REPO, "main", tmp_path / "sources", settings)
    assert (again.cached, again.manifest) == (False, first.manifest)
    assert make_manifest(again.folder) == first.manifest


def test_a_file_that_got_another_hard_link_is_read_again_and_kept(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    first = pull_repo(REPO, "main", tmp_path / "sources", settings)
    os.link(first.folder / "config.json", tmp_path / "elsewhere")
    hub.log.clear()
    assert pull_repo(REPO, "main", tmp_path / "sources", settings) == replace(first, cached=True)
    assert [request.kind for request in hub.log.find()] == ["info"]


def test_pulls_of_one_commit_at_the_same_time_download_it_once(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    served.faults.bytes_per_second = 20_000
    start = threading.Barrier(4)

    def pull() -> Any:
        start.wait()
        return pull_repo(REPO, "main", tmp_path / "sources", settings)

    with ThreadPoolExecutor(4) as pool:
        results = [future.result() for future in [pool.submit(pull) for _ in range(4)]]
    assert sorted(result.cached for result in results) == [False, True, True, True]
    assert len({result.folder for result in results}) == 1
    # Once for its header, once whole.
    assert len(hub.log.downloads(path="model-00001-of-00002.safetensors")) == 2


def test_an_unusable_checkpoint_leaves_no_folder(hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    folder = builders.draft_model(tmp_path / "served")
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    hub.add(REPO, folder)
    error = refused(lambda: pull_repo(REPO, "main", tmp_path / "sources", settings))
    assert error.problem.slug == "malformed-safetensors"
    assert leftovers(tmp_path / "sources") == []


def test_a_link_stored_in_git_is_no_weight_file(hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    """Git stores a link as a file that holds its target's name; nothing follows it."""
    folder = builders.draft_model(tmp_path / "served")
    (folder / "model.safetensors").write_text("/etc/passwd")
    repo = hub.add(REPO, folder)
    blob = repo.commits[repo.refs["main"]]["model.safetensors"]
    assert isinstance(blob, Blob)
    error = refused(lambda: pull_repo(REPO, "main", tmp_path / "sources", settings))
    assert error.problem.slug == "malformed-safetensors"
