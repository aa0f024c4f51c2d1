"""The archive's writer: exclusive, durable, read-only, and chained, whatever stops it."""

import json
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from draftmill.archive import Archive, EntryKind, read_chain
from draftmill.archive.layout import MANIFEST, RECEIPT, REQUEST, STDERR, STDOUT, chain_path, folder_name, read_name
from draftmill.archive.manifest import BootManifest, sha256_of
from draftmill.benchmarks import ArmName
from draftmill.problems import ProblemError
from draftmill.receipts import BootState, Receipt
from draftmill_service.ledger import LedgerUnavailable
from draftmill_worker.receipts.archive import ArchiveWriter
from tests.unit.receipts.conftest import Shelf
from tests.unit.receipts.good import START
from tests.unit.receipts.heads import MemoryHeads


def test_a_sealed_boot_holds_raw_bytes_and_a_manifest_of_them(shelf: Shelf) -> None:
    boot = shelf.add()
    assert sorted(path.name for path in boot.folder.iterdir()) == sorted([REQUEST, STDOUT, STDERR, RECEIPT, MANIFEST])
    assert boot.stdout.read_bytes() == b"\xff raw \x00 bytes\n"
    assert boot.request.read_bytes() == b'{"ask": 1}\n'
    manifest = BootManifest.model_validate_json((boot.folder / MANIFEST).read_bytes())
    assert manifest.boot == boot.id
    assert [file.path for file in manifest.files] == sorted([REQUEST, STDOUT, STDERR, RECEIPT])
    for file in manifest.files:
        assert (file.size, file.sha256) == (
            (boot.folder / file.path).stat().st_size,
            sha256_of(boot.folder / file.path),
        )


def test_everything_of_an_ended_boot_is_read_only(shelf: Shelf) -> None:
    boot = shelf.add()
    assert stat.S_IMODE(boot.folder.stat().st_mode) == 0o555
    assert {stat.S_IMODE(path.stat().st_mode) for path in boot.folder.iterdir()} == {0o444}


def test_the_chain_holds_an_entry_before_the_boot_and_one_after(shelf: Shelf) -> None:
    boot = shelf.open()
    assert [entry.kind for entry in read_chain(shelf.chain).entries] == [EntryKind.OPENED]
    receipt = shelf.receipt.model_copy(update={"boot": boot.id, "chain": boot.link})
    boot.seal(receipt)
    chain = read_chain(shelf.chain)
    opened, sealed = chain.entries
    assert (opened.seq, sealed.seq, opened.previous, sealed.previous) == (1, 2, None, chain.hashes[0])
    assert sealed.sha256 == sha256_of(boot.folder / MANIFEST)
    assert chain.head() == shelf.heads.kept["worker-1"]
    assert shelf.archive.receipt(boot.id) == receipt


def test_a_boot_ends_once_and_with_its_own_receipt(shelf: Shelf) -> None:
    boot = shelf.open()
    with pytest.raises(ValueError, match="receipt is of boot"):
        boot.seal(shelf.receipt)
    boot.seal(shelf.receipt.model_copy(update={"boot": boot.id, "chain": boot.link}))
    with pytest.raises(FileExistsError):
        boot.fail()
    assert shelf.verify().passed


def test_a_failed_boot_keeps_what_the_engine_said(shelf: Shelf) -> None:
    boot = shelf.open()
    boot.stderr.write_bytes(b"Traceback ...")
    boot.fail()
    report = shelf.verify()
    assert (report.passed, report.failed, report.incomplete) == (True, 1, ())
    with pytest.raises(ProblemError, match="not-ready"):
        shelf.archive.receipt(boot.id)
    shelf.unlock()
    boot.stderr.write_bytes(b"all is well..")
    assert shelf.kinds() == ["file-changed"]


def test_a_boot_that_died_is_incomplete_and_no_tampering(shelf: Shelf) -> None:
    died = shelf.open()
    shelf.add()
    report = shelf.verify()
    assert (report.passed, report.sealed, report.incomplete) == (True, 1, (died.id,))


KILLED = """
import os, signal, sys
from pathlib import Path
from draftmill_worker.receipts import archive
from tests.unit.receipts.heads import MemoryHeads
where = sys.argv[2]
def stop(name):
    original = getattr(archive, name)
    def stopped(*args, **kwargs):
        if any(where in str(arg) for arg in args):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)
    setattr(archive, name, stopped)
stop("write_new")
stop("sync")
boot = archive.ArchiveWriter(Path(sys.argv[1]), "worker-1", MemoryHeads()).open(b"{}")
boot.fail()
"""


@pytest.mark.parametrize("where", ["receipts", REQUEST, STDERR, MANIFEST])
def test_a_writer_killed_at_any_step_leaves_no_sign_of_tampering(shelf: Shelf, where: str) -> None:
    shelf.root.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, "-c", KILLED, str(shelf.root), where], check=False)
    assert done.returncode == -signal.SIGKILL
    report = shelf.verify(heads=False)
    assert report.findings == ()
    # The next boot goes on as if nothing had been.
    shelf.add()
    assert shelf.verify(heads=False).passed


def test_a_torn_line_shows_until_the_writer_mends_it(shelf: Shelf, three: list[object]) -> None:
    with shelf.chain.open("ab") as file:
        file.write(b'{"boot":"b0')
    assert shelf.kinds() == ["chain-broken"]
    shelf.add()
    assert shelf.verify().passed
    assert len(read_chain(shelf.chain).entries) == 8


def test_writers_have_chains_of_their_own_and_share_one_safely(shelf: Shelf) -> None:
    heads = shelf.heads

    def boot(number: int) -> None:
        ArchiveWriter(shelf.root, f"worker-{number % 2}", heads).open(b"{}").fail()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(boot, range(24)))
    report = shelf.verify()
    assert (report.passed, report.failed) == (True, 24)
    assert {(chain.writer, chain.entries) for chain in report.chains} == {("worker-0", 24), ("worker-1", 24)}


def test_no_boot_without_the_ledger_and_no_measurement_lost_when_it_goes_away(shelf: Shelf) -> None:
    boot = shelf.open()
    shelf.heads.away = True
    boot.seal(shelf.receipt.model_copy(update={"boot": boot.id, "chain": boot.link}))
    with pytest.raises(LedgerUnavailable):
        shelf.open()
    shelf.heads.away = False
    assert shelf.heads.kept["worker-1"].sequence == 1
    report = shelf.verify()
    assert (report.passed, report.chains[0].entries, report.chains[0].committed) == (True, 2, 1)
    shelf.add()
    assert shelf.heads.kept["worker-1"].sequence == 4


def test_a_writer_does_not_go_on_behind_a_lost_tail(shelf: Shelf, three: list[object]) -> None:
    lines = shelf.chain.read_bytes().splitlines(keepends=True)
    shelf.chain.write_bytes(b"".join(lines[:-2]))
    # More boots than were lost: the chain must not grow past its head unseen.
    for _ in range(4):
        with pytest.raises(ProblemError, match="receipt-chain-broken"):
            shelf.open()
    assert len(read_chain(shelf.chain).entries) == 4
    assert "tail-missing" in shelf.kinds()


def test_a_writer_does_not_go_on_behind_another_chain(shelf: Shelf, three: list[object]) -> None:
    head = shelf.heads.kept["worker-1"]
    shelf.heads.kept["worker-1"] = head.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(ProblemError, match="receipt-chain-broken"):
        shelf.open()
    assert shelf.kinds() == ["chain-rewritten"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 200])
def test_names_that_no_writer_may_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="writer"):
        ArchiveWriter(tmp_path, name, MemoryHeads())


def test_folder_names_sort_by_time_and_read_back() -> None:
    boot = "b" + "0" * 32
    name = folder_name(START, boot)
    assert name == f"20261130T120000000000Z-{boot}"
    assert read_name(name) == (START, boot)
    assert read_name(f"20261399T120000000000Z-{boot}") is None
    assert read_name("chains") is None
    assert chain_path(Path("r"), "w").as_posix() == "r/chains/w.jsonl"


def test_lists_newest_first_by_job_and_arm(shelf: Shelf) -> None:
    first = shelf.add(arm=ArmName.CONTROL)
    second = shelf.add(job="j" + "1" * 26)
    third = shelf.open()
    archive = shelf.archive
    assert [summary.boot for summary in archive.summaries()] == [third.id, second.id, first.id]
    assert [summary.boot for summary in archive.summaries(job="j" + "1" * 26)] == [second.id]
    assert [summary.boot for summary in archive.summaries(arm=ArmName.CONTROL)] == [first.id]
    assert [summary.boot for summary in archive.summaries(before=second.folder.name)] == [first.id]
    assert [summary.state for summary in archive.summaries()] == [
        BootState.INCOMPLETE,
        BootState.SEALED,
        BootState.SEALED,
    ]
    assert list(Archive(shelf.root / "nowhere").summaries()) == []


def test_a_damaged_receipt_is_named_and_not_given(shelf: Shelf, three: list[object]) -> None:
    boot = next(shelf.archive.summaries()).boot
    path = shelf.archive.folder(boot).path / RECEIPT
    path.write_text(path.read_text().replace("0.32.0", "0.33.0"))
    with pytest.raises(ProblemError, match="receipt-damaged"):
        shelf.archive.receipt(boot)
    assert next(shelf.archive.summaries()).failed_rules == ("readable",)
    path.write_bytes(b"{")
    with pytest.raises(ProblemError, match="receipt-damaged"):
        shelf.archive.receipt(boot)


@pytest.mark.parametrize("boot", ["b" + "0" * 32, "../../etc", "b*", ""])
def test_an_unknown_boot_is_not_found(shelf: Shelf, boot: str) -> None:
    with pytest.raises(ProblemError, match="not-found"):
        shelf.archive.receipt(boot)


def test_a_receipt_survives_its_file(shelf: Shelf) -> None:
    boot = shelf.add()
    raw = json.loads((boot.folder / RECEIPT).read_bytes())
    assert raw["schema"] == "draftmill.receipt/v1"
    assert raw["host"]["class"]
    assert Receipt.model_validate(raw).boot == boot.id
    assert os.access(boot.folder, os.R_OK)
