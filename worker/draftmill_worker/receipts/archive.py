"""Writing the archive: a folder per boot, made exclusively, its files whole and read-only before the chain names them.

Order on the disk: folder, chain entry `opened`, request, what the engine says, receipt, MANIFEST, chain entry `sealed`.
Whatever stops a writer leaves a boot that reads as incomplete, never one that reads as tampered with.
"""

import logging
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path

from draftmill.archive import manifest
from draftmill.archive.chain import Entry, EntryKind
from draftmill.archive.layout import MANIFEST, RECEIPT, REQUEST, STDERR, STDOUT, folder_name
from draftmill.receipts import ChainLink, Receipt
from draftmill_service.ledger import LedgerUnavailable
from draftmill_worker.files import sync
from draftmill_worker.receipts.chain import ChainWriter, Heads

logger = logging.getLogger(__name__)

READ_ONLY_FILE = 0o444
READ_ONLY_FOLDER = 0o555


class ArchiveWriter:
    """Opens boots in the archive below `root` (`receipts/` of a data directory), in the chain of `writer`."""

    def __init__(self, root: Path, writer: str, heads: Heads) -> None:
        """ValueError for a name that no writer may have: letters, digits, `.`, `_` and `-`."""
        self._root = root
        self._chain = ChainWriter(root, writer, heads)

    def open(self, request: bytes) -> "Boot":
        """A new boot, recorded before it happens. `request` is what the engine process is asked, as it is.

        Raises ProblemError("receipt-chain-broken"), LedgerUnavailable.
        """
        opened_at = datetime.now(UTC)
        boot = f"b{secrets.token_hex(16)}"
        folder = self._root / folder_name(opened_at, boot)
        self._root.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o755)
        sync(self._root)
        entry = self._chain.append(EntryKind.OPENED, boot, folder.name)
        self._chain.commit(entry)
        write_new(folder / REQUEST, request)
        write_new(folder / STDOUT, b"")
        write_new(folder / STDERR, b"")
        sync(folder)
        return Boot(folder, entry, self._chain)


class Boot:
    """One boot in the making. What the engine says goes to the files `stdout` and `stderr`, appended, as raw bytes."""

    def __init__(self, folder: Path, opened: Entry, chain: ChainWriter) -> None:
        self.id = opened.boot
        self.folder = folder
        self.request = folder / REQUEST
        self.stdout = folder / STDOUT
        self.stderr = folder / STDERR
        self.link = ChainLink(writer=chain.writer, sequence=opened.seq, previous=opened.previous)
        self._chain = chain

    def seal(self, receipt: Receipt) -> None:
        """End the boot with its receipt. Nothing may write to the boot's files any more.

        ValueError for a receipt of another boot; FileExistsError when this boot has ended.
        """
        if (receipt.boot, receipt.chain) != (self.id, self.link):
            raise ValueError(f"the receipt is of boot {receipt.boot}, entry {receipt.chain.sequence}")
        write_new(self.folder / RECEIPT, receipt.model_dump_json(by_alias=True, indent=1).encode() + b"\n")
        self._end(EntryKind.SEALED)

    def fail(self) -> None:
        """End the boot without a receipt: what the engine said until it failed is kept and protected."""
        self._end(EntryKind.FAILED)

    def _end(self, kind: EntryKind) -> None:
        for name in manifest.files_of(self.folder):
            sync(self.folder / name)
        listed = manifest.make(self.folder, self.id)
        write_new(self.folder / MANIFEST, listed.bytes())
        for name in (*manifest.files_of(self.folder), MANIFEST):
            (self.folder / name).chmod(READ_ONLY_FILE)
        self.folder.chmod(READ_ONLY_FOLDER)
        sync(self.folder)
        sha256 = manifest.sha256_of(self.folder / MANIFEST)
        try:
            self._chain.commit(self._chain.append(kind, self.id, self.folder.name, sha256))
        except LedgerUnavailable:
            # The measurement is done and on the disk; the head that the next boot commits covers it.
            logger.warning("boot %s has ended and its chain's head is not committed: the ledger is away", self.id)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, and sync it. FileExistsError otherwise."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
