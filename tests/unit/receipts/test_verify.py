"""Every tampering that `receipts verify` must find, done by somebody who can write to the archive."""

import json
import shutil
from pathlib import Path

import pytest

from draftmill.archive import read_chain, verify
from draftmill.archive.chain import Entry, line_sha256
from draftmill.archive.layout import MANIFEST, RECEIPT, REQUEST, STDOUT
from draftmill.archive.manifest import make, sha256_of
from draftmill_worker.receipts.archive import Boot
from tests.unit.receipts.conftest import Shelf


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def rewrite(shelf: Shelf, entries: list[Entry]) -> None:
    """A chain of these entries whose hashes are right again."""
    lines, previous = [], None
    for number, entry in enumerate(entries, 1):
        line = entry.model_copy(update={"seq": number, "previous": previous}).line()
        previous = line_sha256(line)
        lines.append(line + b"\n")
    shelf.chain.write_bytes(b"".join(lines))


def test_one_flipped_byte_in_any_file(shelf: Shelf, three: list[Boot]) -> None:
    for path in files(shelf.root):
        data = path.read_bytes()
        for place in range(0, len(data), max(1, len(data) // 9)):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            assert not shelf.verify().passed, (path, place)
        path.write_bytes(data)
    assert shelf.verify().passed


def test_every_byte_of_a_chain_counts_without_the_ledger_too(shelf: Shelf) -> None:
    shelf.open().fail()
    shelf.unlock()
    path = shelf.chain
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert not shelf.verify(heads=False).passed, place


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_boot(shelf: Shelf, three: list[Boot], number: int) -> None:
    shutil.rmtree(three[number].folder)
    report = shelf.verify()
    assert [(finding.kind, finding.where) for finding in report.findings] == [
        ("boot-missing", three[number].folder.name)
    ]


def test_the_folder_of_a_boot_that_died_is_missed_too(shelf: Shelf) -> None:
    shutil.rmtree(shelf.open().folder)
    assert shelf.kinds() == ["boot-missing"]


@pytest.mark.parametrize("lost", [1, 2, 5, 6])
def test_a_missing_tail(shelf: Shelf, three: list[Boot], lost: int) -> None:
    lines = shelf.chain.read_bytes().splitlines(keepends=True)
    shelf.chain.write_bytes(b"".join(lines[: len(lines) - lost]))
    assert "tail-missing" in shelf.kinds()


def test_a_tail_with_its_boots_shows_by_the_ledger_alone(shelf: Shelf, three: list[Boot]) -> None:
    lines = shelf.chain.read_bytes().splitlines(keepends=True)
    shelf.chain.write_bytes(b"".join(lines[:-2]))
    shutil.rmtree(three[-1].folder)
    assert shelf.kinds() == ["tail-missing"]
    report = shelf.verify(heads=False)
    assert (report.passed, report.heads_checked) == (True, False)


def test_a_missing_chain(shelf: Shelf, three: list[Boot]) -> None:
    shelf.chain.unlink()
    assert shelf.kinds() == ["chain-missing", "boot-added", "boot-added", "boot-added"]


def test_entries_taken_out_of_the_middle(shelf: Shelf, three: list[Boot]) -> None:
    lines = shelf.chain.read_bytes().splitlines(keepends=True)
    shelf.chain.write_bytes(b"".join(lines[:2] + lines[4:]))
    assert set(shelf.kinds()) == {"chain-broken", "boot-added"}


def test_re_ordered_boots(shelf: Shelf, three: list[Boot]) -> None:
    lines = shelf.chain.read_bytes().splitlines(keepends=True)
    shelf.chain.write_bytes(b"".join(lines[2:4] + lines[:2] + lines[4:]))
    assert "chain-broken" in shelf.kinds(heads=False)


def test_re_ordered_boots_with_every_hash_made_right(shelf: Shelf, three: list[Boot]) -> None:
    entries = list(read_chain(shelf.chain).entries)
    rewrite(shelf, entries[2:4] + entries[:2] + entries[4:])
    assert shelf.kinds(heads=False) == ["boot-reordered", "boot-reordered", "boot-reordered"]
    assert "chain-rewritten" in shelf.kinds()


def test_folders_of_boots_exchanged(shelf: Shelf, three: list[Boot]) -> None:
    first, second = three[0].folder, three[1].folder
    aside = shelf.root / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    assert {"file-changed", "boot-reordered"} == set(shelf.kinds(heads=False))


def test_a_receipt_changed_with_its_manifest(shelf: Shelf, three: list[Boot]) -> None:
    folder = three[0].folder
    path = folder / RECEIPT
    receipt = json.loads(path.read_bytes())
    receipt["counts"]["accepted"] += 1
    path.write_text(json.dumps(receipt))
    (folder / MANIFEST).write_bytes(make(folder, three[0].id).bytes())
    assert [finding.where for finding in shelf.verify(heads=False).findings] == [f"{folder.name}/{MANIFEST}"]
    # And with the chain: the ledger remembers.
    entries = list(read_chain(shelf.chain).entries)
    entries[1] = entries[1].model_copy(update={"sha256": sha256_of(folder / MANIFEST)})
    rewrite(shelf, entries)
    assert "chain-rewritten" in shelf.kinds()


@pytest.mark.parametrize("name", ["extra.txt", "nested"])
def test_an_added_file(shelf: Shelf, three: list[Boot], name: str) -> None:
    added = three[1].folder / name
    added.mkdir() if name == "nested" else added.write_bytes(b"")
    assert shelf.kinds() == ["file-added"]


@pytest.mark.parametrize("where", ["note.txt", "chains/note.txt", "chains/.worker-1.jsonl.swp"])
def test_an_added_file_outside_the_boots(shelf: Shelf, three: list[Boot], where: str) -> None:
    (shelf.root / where).write_bytes(b"x")
    report = shelf.verify()
    assert [(finding.kind, finding.where) for finding in report.findings] == [("file-added", where)]


def test_an_added_boot(shelf: Shelf, three: list[Boot]) -> None:
    copy = three[0].folder.name.replace(three[0].id, "b" + "0" * 32)
    shutil.copytree(three[0].folder, shelf.root / copy)
    assert shelf.kinds() == ["boot-added"]


@pytest.mark.parametrize("name", [STDOUT, REQUEST, RECEIPT, MANIFEST])
def test_a_missing_file(shelf: Shelf, three: list[Boot], name: str) -> None:
    (three[2].folder / name).unlink()
    assert "file-missing" in shelf.kinds()


def test_a_file_replaced_by_a_link_to_the_same_bytes(shelf: Shelf, three: list[Boot], tmp_path: Path) -> None:
    path = three[0].folder / STDOUT
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert shelf.kinds() == ["file-changed"]


def test_an_empty_archive_and_an_empty_folder_are_well(tmp_path: Path, shelf: Shelf) -> None:
    assert verify(tmp_path / "nothing", []).passed
    boot = shelf.add()
    (shelf.root / boot.folder.name.replace(boot.id, "b" + "0" * 32)).mkdir()
    report = shelf.verify()
    assert report.passed
    assert "never opened" in report.notes[0]
