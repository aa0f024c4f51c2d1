"""Slots under races and damage, the budget's arithmetic, patience, and links that cannot be made."""

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from draftmill.problems import ProblemError
from draftmill.reports import Manifest
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.pull import LocalSettings, pull_path
from draftmill_worker.pull.budget import check_budget, full_disk, used_bytes
from draftmill_worker.pull.faults import Patience, StoppedError, TransientError
from draftmill_worker.pull.settings import HubSettings, Limits
from draftmill_worker.pull.store import Slot
from tests.unit.pull import builders


def fill(slot: Slot, content: bytes) -> Manifest:
    slot.partial.mkdir(parents=True)
    (slot.partial / "config.json").write_bytes(content)
    return make_manifest(slot.partial)


def test_nothing_shows_before_it_is_sealed(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "repo", "a" * 40)
    manifest = fill(slot, b"{}")
    assert slot.sealed() is None
    slot.seal(manifest)
    assert slot.sealed() == manifest
    assert not slot.partial.exists()


def test_a_crash_between_manifest_and_rename_shows_nothing(tmp_path: Path) -> None:
    slot = Slot(tmp_path, "a" * 40)
    manifest = fill(slot, b"{}")
    slot.manifest_path.write_text(manifest.model_dump_json())
    assert slot.sealed() is None


def test_the_loser_of_a_race_adopts_an_equal_folder(tmp_path: Path) -> None:
    """Where flock is not honoured two pulls may fill one slot."""
    slot = Slot(tmp_path, "a" * 40)
    slot.seal(fill(slot, b"{}"))
    winner = (slot.folder / "config.json").stat().st_ino
    manifest = fill(slot, b"{}")
    slot.seal(manifest)
    assert slot.sealed() == manifest
    assert (slot.folder / "config.json").stat().st_ino == winner
    assert not slot.partial.exists()


def test_the_loser_of_a_race_does_not_adopt_another_folder(tmp_path: Path) -> None:
    slot = Slot(tmp_path, "a" * 40)
    slot.seal(fill(slot, b"{}"))
    other = fill(slot, b"[]")
    with pytest.raises(OSError, match="not empty"):
        slot.seal(other)


def test_a_changed_byte_is_found_whatever_the_times_say(tmp_path: Path) -> None:
    slot = Slot(tmp_path, "a" * 40)
    slot.seal(fill(slot, b"{}"))
    path = slot.folder / "config.json"
    status = path.stat()
    path.chmod(0o644)
    path.write_bytes(b"[]")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert slot.sealed() is None


def test_a_lock_keeps_others_out_and_leaves_no_file(tmp_path: Path) -> None:
    """Every waiter waits for a file that its holder removes."""
    slot = Slot(tmp_path, "a")
    inside: list[int] = []
    most: list[int] = []

    def enter(number: int) -> None:
        for _ in range(50):
            with slot.locked():
                inside.append(number)
                os.sched_yield()
                most.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(enter, range(6)))
    assert set(most) == {1}
    assert len(most) == 300
    assert list(tmp_path.iterdir()) == []


def test_identities_that_are_gone_cost_a_hash_and_come_back(tmp_path: Path) -> None:
    slot = Slot(tmp_path, "a" * 40)
    manifest = fill(slot, b"{}")
    slot.seal(manifest)
    for damage in (slot.identity_path.unlink, lambda: slot.identity_path.write_text("{")):
        damage()
        hashed: list[int] = []
        assert slot.sealed(lambda done, _: hashed.append(done)) == manifest  # noqa: B023
        assert hashed == [2]
        assert slot.sealed(lambda done, _: hashed.append(done)) == manifest  # noqa: B023
        assert hashed == [2]


def test_two_links_to_one_file_use_its_bytes_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").write_bytes(b"x" * 10)
    (tmp_path / "d").symlink_to(tmp_path / "c")
    assert used_bytes(tmp_path) == 110 + len(str(tmp_path / "c"))


def test_the_budget_counts_what_is_there_and_not_what_was_fetched_before(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x" * 60)
    (tmp_path / "part").write_bytes(b"x" * 30)
    check_budget(tmp_path, 40, 30, Limits(disk_budget_bytes=100))
    with pytest.raises(ProblemError, match="10 bytes are to be stored; 9 bytes are left"):
        check_budget(tmp_path, 40, 30, Limits(disk_budget_bytes=99))
    with pytest.raises(ProblemError, match="disk-budget"):
        check_budget(tmp_path, 1, 0, Limits(reserve_bytes=1 << 62))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_is_named(number: int) -> None:
    with pytest.raises(ProblemError, match="disk-budget"), full_disk("x"):
        raise OSError(number, "full")


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(PermissionError), full_disk("x"):
        raise PermissionError


def test_patience_waits_longer_each_time_and_ends() -> None:
    waits: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            return False

    settings = HubSettings(tries=5, backoff_seconds=1, max_backoff_seconds=3)
    patience = Patience(settings, Stop())
    fault = TransientError("hub-unavailable", "x")
    for _ in range(4):
        patience.wait(fault)
    with pytest.raises(ProblemError, match="given up after 5 tries"):
        patience.wait(fault)
    assert [0.7 < wait / wanted < 1.3 for wait, wanted in zip(waits, (1, 2, 3, 3), strict=True)] == [True] * 4


def test_waits_together_are_bounded() -> None:
    patience = Patience(HubSettings(tries=100, max_wait_seconds=0.25), threading.Event())
    fault = TransientError("rate-limited", "x", after=0.1)
    patience.wait(fault)
    patience.wait(fault)
    with pytest.raises(ProblemError, match="rate-limited"):
        patience.wait(fault)


def test_a_stop_ends_a_wait() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        Patience(HubSettings(), stop).wait(TransientError("rate-limited", "x", after=60))


@pytest.mark.parametrize("number", [errno.EPERM, errno.EMLINK, errno.EXDEV])
def test_a_link_that_cannot_be_made_becomes_a_copy_and_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """EPERM is another user's file under protected_hardlinks, which needs a second user to provoke."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    folder = builders.draft_model(tmp_path / "drafter")
    monkeypatch.setattr(os, "link", refuse)
    pulled = pull_path(folder, [tmp_path], tmp_path / "sources", LocalSettings(link=True))
    assert len(pulled.notes) == 1
    assert pulled.notes[0].startswith("model.safetensors was copied, not linked")
    assert not (pulled.folder / "model.safetensors").samefile(folder / "model.safetensors")
