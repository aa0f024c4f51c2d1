"""An archive with boots of one writer, and the heads its ledger would hold."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from draftmill.archive import Archive, ArchiveReport, verify
from draftmill.archive.layout import RECEIPT
from draftmill.receipts import Receipt
from draftmill_worker.receipts.archive import ArchiveWriter, Boot
from tests.unit.receipts.good import good
from tests.unit.receipts.heads import MemoryHeads


@dataclass
class Shelf:
    root: Path
    receipt: Receipt
    heads: MemoryHeads = field(default_factory=MemoryHeads)

    @property
    def writer(self) -> ArchiveWriter:
        return ArchiveWriter(self.root, "worker-1", self.heads)

    @property
    def archive(self) -> Archive:
        return Archive(self.root)

    @property
    def chain(self) -> Path:
        return self.root / "chains" / "worker-1.jsonl"

    def open(self) -> Boot:
        boot = self.writer.open(b'{"ask": 1}\n')
        boot.stdout.write_bytes(b"\xff raw \x00 bytes\n")
        return boot

    def add(self, **changes: object) -> Boot:
        boot = self.open()
        boot.seal(self.receipt.model_copy(update={"boot": boot.id, "chain": boot.link, **changes}))
        return boot

    def verify(self, heads: bool = True) -> ArchiveReport:
        return verify(self.root, self.heads.chain_heads().items if heads else None)

    def kinds(self, heads: bool = True) -> list[str]:
        return [finding.kind.value for finding in self.verify(heads).findings]

    def unlock(self) -> None:
        """Make everything writable, as whoever tampers would."""
        for folder, _, files in os.walk(self.root):
            Path(folder).chmod(0o755)
            for name in files:
                Path(folder, name).chmod(0o644)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "receipts", good(tmp_path / "drafter").receipt)


@pytest.fixture
def three(shelf: Shelf) -> list[Boot]:
    """Three sealed boots on the shelf, writable."""
    boots = [shelf.add() for _ in range(3)]
    assert shelf.verify().passed
    assert all((boot.folder / RECEIPT).is_file() for boot in boots)
    shelf.unlock()
    return boots


Tamper = Callable[[Shelf, list[Boot]], None]
