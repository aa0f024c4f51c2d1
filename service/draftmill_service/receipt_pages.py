"""The archive of receipts by the page."""

from itertools import islice

from draftmill.archive import Archive
from draftmill.archive.layout import FOLDER, folder_name
from draftmill.benchmarks import ArmName
from draftmill.receipts import ReceiptPage
from draftmill_service.ledger import cursors


def receipt_page(
    archive: Archive, *, job: str | None = None, arm: ArmName | None = None, cursor: str | None = None, limit: int = 50
) -> ReceiptPage:
    """Boots, newest first; with a filter only those that left a receipt. Raises ProblemError("invalid-cursor")."""
    asked = ["receipts", job, arm]
    before = None if cursor is None else cursors.read(asked, cursor, FOLDER)
    found = list(islice(archive.summaries(job=job, arm=arm, before=before), limit + 1))
    items = found[:limit]
    more = cursors.make(asked, folder_name(items[-1].opened_at, items[-1].boot)) if len(found) > limit else None
    return ReceiptPage(items=tuple(items), next_cursor=more)
