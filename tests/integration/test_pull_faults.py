"""Downloads over a wire that breaks: drops, wrong bytes, silence, overload, kills."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.pull import HubSettings, pull_repo, read_remote, resolve
from tests.conftest import ServedHub
from tests.fixtures.hub import Repo
from tests.support import eventually
from tests.unit.pull import builders

REPO = "org/drafter"
WEIGHTS = "model.safetensors"
# One read of the header comes before the download of a weight file.
PEEKS = 1


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


@pytest.fixture
def settings(hub: ServedHub) -> HubSettings:
    return HubSettings(endpoint=hub.url, tries=3, backoff_seconds=0.01, stall_seconds=5, answer_seconds=5)


@pytest.fixture
def served(hub: ServedHub, tmp_path: Path) -> Repo:
    """Weights of 4 MB."""
    return hub.add(REPO, builders.draft_model(tmp_path / "served", vocab=1 << 18))


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(ProblemError) as caught:
        call()
    return caught.value.problem.slug


def part(sources: Path, served: Repo) -> Path:
    return sources / "org--drafter" / f"{served.refs['main']}.partial" / f"{WEIGHTS}.part"


def test_a_dropped_connection_goes_on_at_the_byte_where_it_ended(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    served.faults.only, served.faults.drops, served.faults.drop_after = WEIGHTS, PEEKS + 2, 1_234_567
    seen: list[int] = []
    pulled = pull_repo(REPO, "main", tmp_path / "sources", settings, lambda done, _: seen.append(done))
    ranges = [request.range for request in hub.log.downloads(path=WEIGHTS)][-3:]
    assert ranges == [None, "bytes=1234567-", "bytes=2469134-"]
    assert make_manifest(pulled.folder) == pulled.manifest
    assert seen == sorted(seen)


def test_drops_without_end_are_given_up_with_what_came_kept(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    served.faults.only, served.faults.drops, served.faults.drop_after = WEIGHTS, 1000, 70_000
    assert refused(lambda: pull_repo(REPO, "main", tmp_path / "sources", settings)) == "hub-unavailable"
    assert part(tmp_path / "sources", served).stat().st_size == settings.tries * 70_000


def test_progress_renews_patience(served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    """Each try brings more than a mebibyte, so that the count of failures starts anew each time."""
    served.faults.only, served.faults.drops, served.faults.drop_after = WEIGHTS, 1000, (1 << 20) + 1
    assert pull_repo(REPO, "main", tmp_path / "sources", replace(settings, tries=2)).cached is False


def test_wrong_bytes_are_fetched_once_more_from_the_start(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    served.faults.only, served.faults.wrong_bytes = WEIGHTS, PEEKS + 1
    pulled = pull_repo(REPO, "main", tmp_path / "sources", settings)
    assert make_manifest(pulled.folder) == pulled.manifest
    assert [request.range for request in hub.log.downloads(path=WEIGHTS)][PEEKS:] == [None, None]


def test_bytes_wrong_twice_are_corrupt(served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    served.faults.only, served.faults.wrong_bytes = WEIGHTS, PEEKS + 2
    assert refused(lambda: pull_repo(REPO, "main", tmp_path / "sources", settings)) == "download-corrupt"
    assert len(hub.log.downloads(path=WEIGHTS)) == PEEKS + 2
    assert not (tmp_path / "sources" / "org--drafter" / served.refs["main"]).exists()
    assert part(tmp_path / "sources", served).stat().st_size == 0


def test_wrong_bytes_in_a_small_file(served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    served.faults.only, served.faults.wrong_bytes = "config.json", 1
    pull_repo(REPO, "main", tmp_path / "sources", settings)
    assert len(hub.log.downloads(path="config.json")) == 2
    served.faults.wrong_bytes = 1
    read_remote(REPO, "main", settings)
    served.faults.wrong_bytes = 2
    assert refused(lambda: read_remote(REPO, "main", settings)) == "download-corrupt"


def test_damage_to_a_header_on_the_way_does_not_condemn_the_checkpoint(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    """Range-read headers are not hashed. The whole file is, and it decides."""
    folder = builders.draft_model(tmp_path / "tiny")
    repo = hub.add("org/tiny", folder)
    whole = (folder / WEIGHTS).read_bytes()
    damaged = tmp_path / WEIGHTS
    damaged.write_bytes(b"\xff" * 8 + whole[8:])
    blobs = repo.commits[repo.refs["main"]]
    good = blobs[WEIGHTS]
    blobs[WEIGHTS] = replace(good, source=damaged)
    assert refused(lambda: read_remote("org/tiny", "main", settings)) == "malformed-safetensors"
    assert refused(lambda: pull_repo("org/tiny", "main", tmp_path / "sources", settings)) == "download-corrupt"
    blobs[WEIGHTS] = good
    assert pull_repo("org/tiny", "main", tmp_path / "sources", settings).cached is False


def test_silence_is_a_stall_and_a_later_pull_goes_on(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    sources = tmp_path / "sources"
    impatient = replace(settings, stall_seconds=0.3, tries=2)

    def freeze(done: int, _: int) -> None:
        if done > 500_000:
            served.faults.bytes_per_second = 0

    served.faults.only, served.faults.bytes_per_second = WEIGHTS, 4_000_000
    assert refused(lambda: pull_repo(REPO, "main", sources, impatient, freeze)) == "download-stalled"
    kept = part(sources, served).stat().st_size
    assert kept > 0
    served.faults.bytes_per_second = None
    hub.log.clear()
    pulled = pull_repo(REPO, "main", sources, settings)
    assert hub.log.downloads(path=WEIGHTS)[-1].range == f"bytes={kept}-"
    assert make_manifest(pulled.folder) == pulled.manifest


def test_a_drip_is_a_stall_too(served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    """A byte now and then keeps any timeout on silence from firing."""
    drip = replace(settings, stall_seconds=0.3, stall_bytes=5_000_000, tries=2)
    served.faults.only, served.faults.bytes_per_second = WEIGHTS, 1_000_000
    assert refused(lambda: pull_repo(REPO, "main", tmp_path / "sources", drip)) == "download-stalled"


@pytest.mark.parametrize("fault", ["rate_limited", "server_errors"])
def test_a_busy_hub_is_asked_again(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path, fault: str
) -> None:
    setattr(served.faults, fault, 2)
    assert pull_repo(REPO, "main", tmp_path / "sources", settings).cached is False


def test_a_hub_that_stays_busy_is_given_up(served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    served.faults.rate_limited = 3
    assert refused(lambda: pull_repo(REPO, "main", tmp_path, settings)) == "rate-limited"
    served.faults.rate_limited, served.faults.server_errors = 0, 3
    assert refused(lambda: pull_repo(REPO, "main", tmp_path, settings)) == "hub-unavailable"
    served.faults.server_errors, served.faults.rate_limited, served.faults.retry_after = 0, 1, 3600
    assert refused(lambda: pull_repo(REPO, "main", tmp_path, settings)) == "rate-limited"


PULL = """
import sys
from pathlib import Path
from draftmill_worker.pull import HubSettings, pull_repo
pull_repo("org/drafter", "main", Path(sys.argv[2]), HubSettings(endpoint=sys.argv[1]))
"""


def test_a_killed_pull_leaves_nothing_visible_and_goes_on_offline_never(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: killed during the pull, run again offline, then online."""
    sources = tmp_path / "sources"
    served.faults.only, served.faults.bytes_per_second = WEIGHTS, 1_000_000
    process = subprocess.Popen([sys.executable, "-c", PULL, hub.url, str(sources)])
    partial = part(sources, served)
    eventually(lambda: partial.exists() and partial.stat().st_size > 300_000, timeout=60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    folder = sources / "org--drafter" / served.refs["main"]
    assert not folder.exists()
    assert not folder.with_name(f"{folder.name}.manifest.json").exists()

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for revision in ("main", served.refs["main"]):
        assert refused(lambda revision=revision: pull_repo(REPO, revision, sources, settings)) == "hub-unavailable"  # type: ignore[misc]
    assert not folder.exists()

    monkeypatch.delenv("HF_HUB_OFFLINE")
    served.faults.bytes_per_second = None
    kept = partial.stat().st_size
    hub.log.clear()
    pulled = pull_repo(REPO, "main", sources, settings)
    assert hub.log.downloads(path=WEIGHTS)[-1].range == f"bytes={kept}-"
    assert make_manifest(pulled.folder) == pulled.manifest


def test_what_a_crash_left_damaged_is_fetched_anew(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    sources = tmp_path / "sources"
    partial = part(sources, served)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"\0" * 1000)
    (partial.parent / "config.json").write_text("half")
    (partial.parent / "stale.safetensors").write_text("of an older listing")
    pulled = pull_repo(REPO, "main", sources, settings)
    assert [request.range for request in hub.log.downloads(path=WEIGHTS)][PEEKS:] == ["bytes=1000-", None]
    assert make_manifest(pulled.folder) == pulled.manifest


def test_a_part_longer_than_the_file_is_fetched_anew(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    partial = part(tmp_path / "sources", served)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"\0" * 8_000_000)
    pulled = pull_repo(REPO, "main", tmp_path / "sources", settings)
    assert make_manifest(pulled.folder) == pulled.manifest


def test_an_outage_does_not_stop_a_commit_that_is_here(
    served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    commit = resolve(REPO, "main", settings).commit
    first = pull_repo(REPO, commit, tmp_path / "sources", settings)
    served.faults.server_errors = 1000
    assert pull_repo(REPO, commit, tmp_path / "sources", settings) == replace(first, cached=True)
    assert refused(lambda: pull_repo(REPO, "main", tmp_path / "sources", settings)) == "hub-unavailable"


def test_a_full_disk_is_a_named_problem(served: Repo, hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    """A small volume needs privileges to mount; a write that fails as it would there does not."""
    script = PULL.replace(
        "pull_repo(",
        "import os, errno\n"
        "write = os.write\n"
        "def full(fd, data):\n"
        "    if len(data) > 10000: raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "    return write(fd, data)\n"
        "os.write = full\n"
        "pull_repo(",
        1,
    )
    done = subprocess.run(
        [sys.executable, "-c", script, hub.url, str(tmp_path / "s")], capture_output=True, text=True, check=False
    )
    assert "ProblemError: disk-budget" in done.stderr
