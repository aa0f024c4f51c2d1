"""Appending to a writer's chain: one line at a time, durable before it counts, its head kept in the ledger."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from pydantic import ValidationError

from draftmill.archive.chain import Entry, EntryKind, line_sha256
from draftmill.archive.layout import chain_path
from draftmill.problems import ProblemError
from draftmill.receipts import ChainHead, ChainHeads
from draftmill_worker.files import sync


class Heads(Protocol):
    """Where chain heads are kept apart from the archive. The worker's ledger is one."""

    def chain_heads(self) -> ChainHeads: ...

    def commit_chain_head(self, writer: str, sequence: int, sha256: str) -> bool:
        """False when a head is kept that cannot lie before this one."""
        ...


class _End(NamedTuple):
    """Of a chain: what the next entry follows."""

    sequence: int
    sha256: str | None
    data: bytes
    """The whole chain, up to the end of its last whole line."""


class ChainWriter:
    """The chain of `writer` in the archive below `root`. Processes may share it: appending takes a lock."""

    def __init__(self, root: Path, writer: str, heads: Heads) -> None:
        """ValueError for a name that no writer may have."""
        self.writer = writer
        self._path = chain_path(root, writer)
        self._heads = heads

    def append(self, kind: EntryKind, boot: str, folder: str, sha256: str | None = None) -> Entry:
        """The entry, once it is on the disk; not yet committed. Opening a boot asks the ledger whether the chain is as
        it was left; ending one does not, so that a ledger that is away loses no measurement.

        ProblemError("receipt-chain-broken") when it is not.
        """
        with self._locked() as descriptor:
            end = self._end(descriptor)
            if kind is EntryKind.OPENED:
                self._check_head(end)
            entry = Entry(seq=end.sequence + 1, kind=kind, boot=boot, folder=folder, sha256=sha256, previous=end.sha256)
            os.write(descriptor, entry.line() + b"\n")
            os.fsync(descriptor)
        return entry

    def commit(self, entry: Entry) -> None:
        """Record the entry as the chain's head. A later one that is recorded already makes this needless."""
        if not self._heads.commit_chain_head(self.writer, entry.seq, line_sha256(entry.line())):
            with self._locked() as descriptor:
                self._check_head(self._end(descriptor))

    @contextmanager
    def _locked(self) -> Iterator[int]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self._path.exists()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if fresh:
                sync(self._path.parent)
            yield descriptor
        finally:
            os.close(descriptor)

    def _end(self, descriptor: int) -> _End:
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            # A writer was stopped in the middle of a line: it never counted.
            os.ftruncate(descriptor, len(whole))
        if not whole:
            return _End(0, None, whole)
        last = whole[:-1].rpartition(b"\n")[2]
        try:
            entry = Entry.model_validate_json(last)
        except ValidationError as error:
            raise self._broken("its last line cannot be read") from error
        return _End(entry.seq, line_sha256(last), whole)

    def _check_head(self, end: _End) -> None:
        head = next((head for head in self._heads.chain_heads().items if head.writer == self.writer), None)
        if head is not None and self._line_sha256(end, head) != head.sha256:
            raise self._broken(f"it does not hold entry {head.sequence}, its head in the ledger")

    @staticmethod
    def _line_sha256(end: _End, head: ChainHead) -> str | None:
        lines = end.data.split(b"\n")[:-1]
        return line_sha256(lines[head.sequence - 1]) if head.sequence <= len(lines) else None

    def _broken(self, why: str) -> ProblemError:
        detail = f"the chain of writer {self.writer}: {why}; `draftmill receipts verify` says more"
        return ProblemError("receipt-chain-broken", detail)
