"""Proof that an archive is as it was written: chains walked, every file hashed, nothing missing, nothing added.

Order matters beside a writer at work: heads are asked for first, then folders are listed, then chains are read, which
can only have grown meanwhile.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from pydantic import Field, ValidationError

from draftmill._model import Model
from draftmill.archive import manifest
from draftmill.archive.chain import Chain, Entry, EntryKind, read_chain
from draftmill.archive.layout import CHAINS, MANIFEST, RECEIPT, read_name
from draftmill.archive.manifest import BootManifest
from draftmill.receipts import BootId, ChainHead, ChainLink, Receipt
from draftmill.reports import ManifestFile


class FindingKind(StrEnum):
    FILE_CHANGED = "file-changed"
    FILE_MISSING = "file-missing"
    FILE_ADDED = "file-added"
    BOOT_MISSING = "boot-missing"
    BOOT_ADDED = "boot-added"
    BOOT_REORDERED = "boot-reordered"
    """A receipt is not at the place in the chain that it names."""
    CHAIN_BROKEN = "chain-broken"
    """A line does not follow from the line before: something was changed, taken out or re-ordered."""
    CHAIN_MISSING = "chain-missing"
    TAIL_MISSING = "tail-missing"
    """The chain is shorter than its head in the ledger."""
    CHAIN_REWRITTEN = "chain-rewritten"
    """The chain holds another line than its head in the ledger."""


class Finding(Model):
    kind: FindingKind
    where: str
    """Path in the archive; a line of a chain as `chains/<writer>.jsonl:<line>`."""
    message: str


class ChainState(Model):
    writer: str
    entries: int
    committed: int | None = None
    """Entries up to the head in the ledger; None when heads were not at hand."""


class ArchiveReport(Model):
    passed: bool
    """Nothing was tampered with. A boot that died is no tampering."""
    heads_checked: bool
    """Whether heads from the ledger were at hand; without them a missing tail cannot be seen."""
    sealed: int
    failed: int
    incomplete: tuple[BootId, ...]
    """Opened and never ended: the boot died, or goes on."""
    chains: tuple[ChainState, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = Field(default=())


class _Boot(NamedTuple):
    link: ChainLink
    """Of the `opened` entry."""
    opened: Entry
    where: str
    end: Entry | None


def verify(root: Path, heads: Iterable[ChainHead] | None = None) -> ArchiveReport:
    """Check the archive below `root`; `heads` are those in the ledger, or None when it is not at hand."""
    known = None if heads is None else {head.writer: head for head in heads}
    folders = _listed(root)
    chains = _chains(root)
    if not folders <= {entry.folder for chain in chains for entry in chain.entries}:
        # A writer may have opened a boot after its chain was read.
        chains = _chains(root)
    findings = list(_check_heads(chains, known or {}))
    boots: list[_Boot] = []
    for chain in chains:
        findings += _check_chain(chain)
        boots += _boots(chain, findings)
    for boot in boots:
        findings += _check_boot(root, boot)
    notes: list[str] = []
    findings += _check_strays(root, folders, {boot.opened.folder for boot in boots}, notes)
    return ArchiveReport(
        passed=not findings,
        heads_checked=known is not None,
        sealed=sum(boot.end is not None and boot.end.kind is EntryKind.SEALED for boot in boots),
        failed=sum(boot.end is not None and boot.end.kind is EntryKind.FAILED for boot in boots),
        incomplete=tuple(boot.opened.boot for boot in boots if boot.end is None),
        chains=tuple(_state(chain, known) for chain in chains),
        findings=tuple(findings),
        notes=tuple(notes),
    )


def _listed(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.name != CHAINS} if root.is_dir() else set()


def _chains(root: Path) -> list[Chain]:
    return [read_chain(path) for path in sorted((root / CHAINS).glob("*.jsonl"))]


def _state(chain: Chain, heads: dict[str, ChainHead] | None) -> ChainState:
    if heads is None:
        return ChainState(writer=chain.writer, entries=len(chain.entries))
    head = heads.get(chain.writer)
    return ChainState(writer=chain.writer, entries=len(chain.entries), committed=head.sequence if head else 0)


def _check_heads(chains: list[Chain], heads: dict[str, ChainHead]) -> Iterator[Finding]:
    by_writer = {chain.writer: chain for chain in chains}
    for writer, head in heads.items():
        where = f"{CHAINS}/{writer}.jsonl"
        chain = by_writer.get(writer)
        if chain is None:
            message = f"the ledger holds the head of this chain, entry {head.sequence}, and there is no chain"
            yield Finding(kind=FindingKind.CHAIN_MISSING, where=where, message=message)
            continue
        sha256 = {entry.seq: sha256 for entry, sha256 in zip(chain.entries, chain.hashes, strict=True)}
        if head.sequence not in sha256:
            message = f"it ends before entry {head.sequence}, its head in the ledger"
            yield Finding(kind=FindingKind.TAIL_MISSING, where=where, message=message)
        elif sha256[head.sequence] != head.sha256:
            message = f"entry {head.sequence} is not the one that was committed to the ledger"
            yield Finding(kind=FindingKind.CHAIN_REWRITTEN, where=where, message=message)


def _check_chain(chain: Chain) -> Iterator[Finding]:
    for fault in chain.faults:
        where = f"{CHAINS}/{chain.writer}.jsonl:{fault.line}"
        yield Finding(kind=FindingKind.CHAIN_BROKEN, where=where, message=fault.message)
    if chain.torn:
        # Its writer mends this when it opens the next boot.
        message = "the last line has no end"
        yield Finding(kind=FindingKind.CHAIN_BROKEN, where=f"{CHAINS}/{chain.writer}.jsonl", message=message)


def _boots(chain: Chain, findings: list[Finding]) -> list[_Boot]:
    """What the chain says of each boot; entries that make no sense are added to `findings`."""
    found: dict[str, _Boot] = {}
    for entry in chain.entries:
        where = f"{CHAINS}/{chain.writer}.jsonl:{entry.seq}"
        boot = found.get(entry.boot)
        if entry.kind is EntryKind.OPENED and boot is None:
            link = ChainLink(writer=chain.writer, sequence=entry.seq, previous=entry.previous)
            found[entry.boot] = _Boot(link, entry, where, None)
        elif entry.kind is not EntryKind.OPENED and boot is not None and boot.end is None:
            found[entry.boot] = boot._replace(end=entry)
        else:
            message = f"{entry.kind} is out of place for boot {entry.boot}"
            findings.append(Finding(kind=FindingKind.CHAIN_BROKEN, where=where, message=message))
    return list(found.values())


def _check_boot(root: Path, boot: _Boot) -> Iterator[Finding]:
    name = boot.opened.folder
    folder = root / name
    if not folder.is_dir():
        message = f"the boot of {boot.where} is not there"
        yield Finding(kind=FindingKind.BOOT_MISSING, where=name, message=message)
        return
    named = read_name(name)
    if named is None or named.boot != boot.opened.boot:
        message = f"{boot.where} names boot {boot.opened.boot} in this folder"
        yield Finding(kind=FindingKind.CHAIN_BROKEN, where=name, message=message)
    if boot.end is None:
        return
    if boot.end.folder != name:
        message = f"boot {boot.opened.boot} was opened in {name} and ended in {boot.end.folder}"
        yield Finding(kind=FindingKind.CHAIN_BROKEN, where=boot.where, message=message)
    yield from _check_files(folder, boot.end)
    if boot.end.kind is EntryKind.SEALED:
        yield from _check_receipt(folder, boot)


def _check_files(folder: Path, end: Entry) -> Iterator[Finding]:
    where = f"{folder.name}/{MANIFEST}"
    path = folder / MANIFEST
    if not path.is_file():
        yield Finding(kind=FindingKind.FILE_MISSING, where=where, message="the boot has ended and has no MANIFEST")
        return
    if manifest.sha256_of(path) != end.sha256:
        yield Finding(kind=FindingKind.FILE_CHANGED, where=where, message="its hash is not the one in the chain")
    try:
        listed = {file.path: file for file in BootManifest.model_validate_json(path.read_bytes()).files}
    except ValidationError:
        yield Finding(kind=FindingKind.FILE_CHANGED, where=where, message="it cannot be read")
        return
    there = set(manifest.files_of(folder))
    for name in sorted(listed.keys() | there):
        inside = f"{folder.name}/{name}"
        if name not in there:
            yield Finding(kind=FindingKind.FILE_MISSING, where=inside, message="MANIFEST lists it")
        elif name not in listed:
            yield Finding(kind=FindingKind.FILE_ADDED, where=inside, message="MANIFEST does not list it")
        elif (message := _difference(folder / name, listed[name])) is not None:
            yield Finding(kind=FindingKind.FILE_CHANGED, where=inside, message=message)


def _difference(path: Path, listed: ManifestFile) -> str | None:
    stat = path.lstat()
    if not S_ISREG(stat.st_mode):
        return "it is no regular file"
    if stat.st_size != listed.size:
        return f"{stat.st_size} bytes, of {listed.size}"
    return None if manifest.sha256_of(path) == listed.sha256 else "its hash is not the one in MANIFEST"


def _check_receipt(folder: Path, boot: _Boot) -> Iterator[Finding]:
    path = folder / RECEIPT
    if not path.is_file():
        return  # MANIFEST lists it, or does not fit the chain: said already.
    where = f"{folder.name}/{RECEIPT}"
    try:
        receipt = Receipt.model_validate_json(path.read_bytes())
    except ValidationError:
        yield Finding(kind=FindingKind.FILE_CHANGED, where=where, message="it cannot be read")
        return
    if receipt.boot != boot.opened.boot or receipt.chain != boot.link:
        message = f"it is not the receipt of {boot.where}"
        yield Finding(kind=FindingKind.BOOT_REORDERED, where=where, message=message)


def _check_strays(root: Path, folders: set[str], chained: set[str], notes: list[str]) -> Iterator[Finding]:
    """What lies in the archive and belongs to no chain."""
    for name in sorted(folders - chained):
        path = root / name
        if read_name(name) is None or not path.is_dir():
            yield Finding(kind=FindingKind.FILE_ADDED, where=name, message="it is no boot's folder")
        elif any(path.iterdir()):
            yield Finding(kind=FindingKind.BOOT_ADDED, where=name, message="no chain knows this boot")
        else:
            # A writer makes the folder first; one that dies before it opens the boot leaves it empty.
            notes.append(f"{name} is empty and was never opened")
    chains = root / CHAINS
    for path in sorted(chains.iterdir()) if chains.is_dir() else ():
        if path.suffix != ".jsonl":
            yield Finding(kind=FindingKind.FILE_ADDED, where=f"{CHAINS}/{path.name}", message="it is no chain")
