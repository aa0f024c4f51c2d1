"""Hashes, manifests, paths and identities of files."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.hashing import git_sha1_file, sha256_file
from draftmill_worker.checkpoint.identity import FileIdentity, changed, fingerprint
from draftmill_worker.checkpoint.manifest import inside, make_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "b.txt").write_bytes(b"b" * (5 << 20))
    (root / "sub" / "a.txt").write_bytes(b"a")
    return root


def test_sha256_and_its_progress(folder: Path) -> None:
    steps: list[int] = []
    assert sha256_file(folder / "b.txt", steps.append) == hashlib.sha256(b"b" * (5 << 20)).hexdigest()
    assert sum(steps) == 5 << 20
    assert len(steps) > 1


def test_git_sha1_is_gits(folder: Path) -> None:
    path = folder / "sub" / "a.txt"
    expected = subprocess.run(
        ["git", "hash-object", "--no-filters", str(path)], capture_output=True, text=True, check=True
    )
    assert git_sha1_file(path) == expected.stdout.strip()


def test_manifest_is_sorted_and_complete(folder: Path) -> None:
    manifest = make_manifest(folder)
    assert [(file.path, file.size) for file in manifest.files] == [("b.txt", 5 << 20), ("sub/a.txt", 1)]
    assert manifest.files[1].sha256 == hashlib.sha256(b"a").hexdigest()
    assert make_manifest(folder, ["sub/a.txt"]).files == manifest.files[1:]


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "sub/../../x", "", ".", "sub\\x", "a\0b", "\ud800", "x" * 5000]
)
def test_paths_that_leave_the_folder(folder: Path, path: str) -> None:
    with pytest.raises(ProblemError) as caught:
        inside(folder, path)
    assert caught.value.problem.slug == "unsafe-path"


def test_a_link_out_of_the_folder_is_seen(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "loop").symlink_to(folder / "loop")
    for name in ("link", "loop"):
        with pytest.raises(ProblemError):
            inside(folder, name)
    with pytest.raises(ProblemError):
        make_manifest(folder, ["link"])


def test_paths_inside(folder: Path) -> None:
    assert inside(folder, "sub/a.txt") == folder.resolve() / "sub" / "a.txt"
    assert inside(folder, "sub/../new.txt") == folder.resolve() / "new.txt"


def test_c30_a_write_through_a_hard_link_changes_the_identity(folder: Path, tmp_path: Path) -> None:
    before = fingerprint(folder)
    os.link(folder / "sub" / "a.txt", tmp_path / "link")
    (tmp_path / "link").write_text("z")
    assert [offender.where for offender in changed(folder, before)] == ["sub/a.txt"]


def test_a_replaced_file_has_another_inode(folder: Path, tmp_path: Path) -> None:
    before = fingerprint(folder)
    (tmp_path / "new").write_bytes(b"a")
    (tmp_path / "new").replace(folder / "sub" / "a.txt")
    (offender,) = changed(folder, before)
    assert "inode" in offender.message


def test_added_and_removed_files(folder: Path) -> None:
    before = fingerprint(folder)
    assert changed(folder, before) == []
    (folder / "b.txt").unlink()
    (folder / "c.txt").write_text("c")
    assert [(offender.where, offender.message) for offender in changed(folder, before)] == [
        ("b.txt", "removed"),
        ("c.txt", "added"),
    ]


def test_identities_survive_json(folder: Path) -> None:
    before = fingerprint(folder)
    assert all(isinstance(identity, FileIdentity) for identity in before.values())
    assert changed(folder, json.loads(json.dumps(before))) == []
