"""What stays of something that was removed."""

from pathlib import Path

from pydantic import ValidationError

from draftmill._model import Model
from draftmill.archive import Archive
from draftmill.archive.reader import read_receipt
from draftmill.jobs import Instant
from draftmill.problems import ProblemError
from draftmill.receipts import Checkpointed, Receipt
from draftmill_service.retention.layout import Kind, source_name


class Tombstone(Model):
    name: str
    kind: Kind
    removed_at: Instant
    why: str
    bytes: int
    receipts: tuple[str, ...] = ()
    """Boots whose receipts name it."""

    def says(self) -> str:
        return f"was removed by retention on {self.removed_at:%Y-%m-%d}: {self.why}"


def read_tombstone(path: Path) -> Tombstone | None:
    try:
        return Tombstone.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def receipts_by_name(data: Path) -> dict[str, list[str]]:
    """Boots by the names of the items that their receipts name. A receipt that cannot be read names nothing."""
    found: dict[str, list[str]] = {}
    for folder in Archive.of(data).folders():
        try:
            receipt = read_receipt(folder.path)
        except (ProblemError, FileNotFoundError):
            continue
        for name in _named(receipt):
            found.setdefault(name, []).append(receipt.boot)
    return found


def _named(receipt: Receipt) -> set[str]:
    names = {f"jobs/{receipt.job}"} if receipt.job else set()
    for model in (receipt.target, receipt.drafter):
        names |= set() if model is None else _of(model)
    return names


def _of(model: Checkpointed) -> set[str]:
    names = {f"variants/{model.variant}"} if model.variant else set()
    return names | ({source_name(model.source, model.commit)} if model.commit else set())
