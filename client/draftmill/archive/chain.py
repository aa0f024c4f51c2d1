"""A writer's chain: JSON lines, each with its number and the SHA-256 of the line before."""

import hashlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field, StringConstraints, ValidationError

from draftmill._model import Model
from draftmill.digests import canonical
from draftmill.jobs import Sha256
from draftmill.receipts import BootId, ChainHead


class EntryKind(StrEnum):
    OPENED = "opened"
    """Written before the boot."""
    SEALED = "sealed"
    """The boot ended in order, with a receipt."""
    FAILED = "failed"
    """The boot ended in order, without one."""


class Entry(Model):
    seq: Annotated[int, Field(ge=1)]
    kind: EntryKind
    boot: BootId
    folder: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z-]+$")]
    """Of the boot, in the archive."""
    sha256: Sha256 | None
    """Of the boot's MANIFEST; None for `opened`."""
    previous: Sha256 | None
    """Of the line before, without its line feed; None for the first."""

    def line(self) -> bytes:
        return canonical(self)


def line_sha256(line: bytes) -> str:
    """`line` without its line feed."""
    return hashlib.sha256(line).hexdigest()


class Fault(NamedTuple):
    line: int
    """From 1."""
    message: str


class Chain(NamedTuple):
    writer: str
    entries: tuple[Entry, ...]
    hashes: tuple[str, ...]
    """Of each entry's line."""
    faults: tuple[Fault, ...]
    """Lines that cannot be read, or do not follow from the line before."""
    torn: bool
    """The last line has no line feed: its writer was stopped in the middle of it. It is not among the entries."""

    def head(self) -> ChainHead | None:
        if not self.entries:
            return None
        return ChainHead(writer=self.writer, sequence=self.entries[-1].seq, sha256=self.hashes[-1])


def read_chain(path: Path) -> Chain:
    """The chain with everything that is wrong in it; nothing is raised for its contents."""
    *lines, rest = path.read_bytes().split(b"\n")
    entries: list[Entry] = []
    hashes: list[str] = []
    faults: list[Fault] = []
    previous: str | None = None
    for number, line in enumerate(lines, 1):
        sha256 = line_sha256(line)
        try:
            entry = Entry.model_validate_json(line)
        except ValidationError:
            faults.append(Fault(number, "this line cannot be read"))
        else:
            if entry.line() != line:
                faults.append(Fault(number, "this line is not as its writer writes it"))
            if entry.seq != number:
                faults.append(Fault(number, f"entry {number} is due, this is {entry.seq}"))
            if entry.previous != previous:
                faults.append(Fault(number, "it does not follow from the line before"))
            entries.append(entry)
            hashes.append(sha256)
        previous = sha256
    return Chain(path.stem, tuple(entries), tuple(hashes), tuple(faults), bool(rest))
