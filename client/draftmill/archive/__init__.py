"""The archive of receipts as files: where things lie, reading, proving that nothing was changed, comparing.

    receipts/<utc>-<boot>/     request.json, stdout.log, stderr.log, receipt.json, MANIFEST (written last)
    receipts/chains/           <writer>.jsonl: one line when a boot is opened, one when it has ended

Each line of a chain holds the hash of the line before; the last line's hash is also in the ledger.
"""

from draftmill.archive.chain import Chain, Entry, EntryKind, read_chain
from draftmill.archive.diff import diff
from draftmill.archive.manifest import BootManifest
from draftmill.archive.reader import Archive
from draftmill.archive.verify import ArchiveReport, Finding, FindingKind, verify

__all__ = [
    "Archive",
    "ArchiveReport",
    "BootManifest",
    "Chain",
    "Entry",
    "EntryKind",
    "Finding",
    "FindingKind",
    "diff",
    "read_chain",
    "verify",
]
