"""Reading the archive: receipts by boot, and the newest of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from draftmill.archive.layout import BOOT, MANIFEST, RECEIPT, RECEIPTS, BootName, read_name
from draftmill.archive.manifest import BootManifest, sha256_of
from draftmill.benchmarks import ArmName
from draftmill.problems import ProblemError
from draftmill.receipts import BootState, Checkpointed, Receipt, ReceiptSummary


class Folder(NamedTuple):
    path: Path
    name: BootName


class Archive:
    """The archive below `root`, which need not exist yet. Safe beside writers: it sees only what is whole."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def of(cls, data_dir: Path) -> "Archive":
        return cls(data_dir / RECEIPTS)

    def folders(self) -> list[Folder]:
        """Every boot's folder, newest first."""
        if not self.root.is_dir():
            return []
        named = ((path, read_name(path.name)) for path in self.root.iterdir())
        found = [Folder(path, name) for path, name in named if name is not None]
        return sorted(found, key=lambda folder: folder.path.name, reverse=True)

    def folder(self, boot: str) -> Folder:
        """Raises ProblemError("not-found")."""
        if BOOT.fullmatch(boot):
            for folder in self.folders():
                if folder.name.boot == boot:
                    return folder
        raise ProblemError("not-found", "there is no boot of this id")

    def receipt(self, boot: str) -> Receipt:
        """Raises ProblemError: not-found; not-ready for a boot without a receipt; receipt-damaged."""
        folder = self.folder(boot)
        state = state_of(folder.path)
        if state is not BootState.SEALED:
            raise ProblemError("not-ready", f"the boot is {state}: it left no receipt")
        return read_receipt(folder.path)

    def summaries(
        self, *, job: str | None = None, arm: ArmName | None = None, before: str | None = None
    ) -> Iterator[ReceiptSummary]:
        """Newest first, from behind the folder named `before`. With a filter only boots whose receipt fits."""
        for folder in self.folders():
            if before is not None and folder.path.name >= before:
                continue
            summary = summarize(folder)
            if (job is None or summary.job == job) and (arm is None or summary.arm is arm):
                yield summary


def state_of(folder: Path) -> BootState:
    if not (folder / MANIFEST).is_file():
        return BootState.INCOMPLETE
    return BootState.SEALED if (folder / RECEIPT).is_file() else BootState.FAILED


def read_receipt(folder: Path) -> Receipt:
    """The receipt, when it is what its MANIFEST says. ProblemError("receipt-damaged") otherwise."""
    try:
        manifest = BootManifest.model_validate_json((folder / MANIFEST).read_bytes())
        data = (folder / RECEIPT).read_bytes()
        receipt = Receipt.model_validate_json(data)
    except ValidationError as error:
        raise ProblemError("receipt-damaged", f"{folder.name} cannot be read") from error
    listed = {file.path: file.sha256 for file in manifest.files}
    if listed.get(RECEIPT) != sha256_of(folder / RECEIPT):
        raise ProblemError("receipt-damaged", f"{folder.name}/{RECEIPT} is not what its MANIFEST says")
    return receipt


def summarize(folder: Folder) -> ReceiptSummary:
    """A receipt that cannot be read counts as one that is not there, with the rule `readable` failed."""
    state = state_of(folder.path)
    plain = ReceiptSummary(boot=folder.name.boot, opened_at=folder.name.opened_at, state=state)
    if state is not BootState.SEALED:
        return plain
    try:
        receipt = read_receipt(folder.path)
    except ProblemError:
        return plain.model_copy(update={"failed_rules": ("readable",)})
    return plain.model_copy(
        update={
            "job": receipt.job,
            "attempt": receipt.attempt,
            "arm": receipt.arm,
            "target": _label(receipt.target),
            "drafter": receipt.drafter and _label(receipt.drafter),
            "variant": receipt.drafter and receipt.drafter.variant,
            "counts": receipt.counts,
            "emulated": receipt.emulated,
            "engine_build": receipt.engine_build,
            "failed_rules": tuple(rule.rule for rule in receipt.rules if not rule.passed),
        }
    )


def _label(model: Checkpointed) -> str:
    return model.source if model.commit is None else f"{model.source}@{model.commit}"
