"""The content-addressed store: `variants/<digest>/`, sealed and immutable, and `evidence/<digest>/`, which grows.

A variant is addressed by what decides its bytes. It appears by one rename, after its manifest was written to evidence.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from draftmill.benchmarks import Acceptance
from draftmill.choices import Choice
from draftmill.digests import digest
from draftmill.formats import Format
from draftmill.heads import HeadPlan
from draftmill.jobs import AcceptanceSummary, QuantizeOptions, Summary
from draftmill.plans import Fate, Plan, ScaleSearch
from draftmill.problems import Offender, ProblemError
from draftmill.reports import CheckStatus, Manifest, VerifyReport
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.files import remove_tree, sync, sync_tree, write_atomic

PLAN = "plan.json"
HEAD = "head.json"
"""In place of the plan, where a head was rewritten."""
CARD = "README.md"
READ_ONLY_FILE = 0o444
READ_ONLY_FOLDER = 0o555


def variant_digest(manifest_sha256: str, format: Format, quantize: QuantizeOptions, quantizer: str) -> str:
    """The address of a variant: its source's bytes, what was asked of the quantizer, and which quantizer it was."""
    return digest(
        {
            "manifest_sha256": manifest_sha256,
            "format": format.value,
            "quantize": quantize.model_dump(mode="json"),
            "quantizer": quantizer,
        }
    )


def summarize(plan: Plan, report: VerifyReport) -> Summary:
    statuses = [check.status for check in report.checks]
    return Summary(
        source_bytes=plan.source_bytes,
        variant_bytes=plan.variant_bytes,
        tensors_quantized=sum(tensor.fate is Fate.QUANTIZED for tensor in plan.tensors),
        tensors_kept=sum(tensor.fate is not Fate.QUANTIZED for tensor in plan.tensors)
        + sum(file.tensors for file in plan.untouched),
        checks_passed=statuses.count(CheckStatus.PASS),
        checks_warned=statuses.count(CheckStatus.WARN),
        checks_failed=statuses.count(CheckStatus.FAIL),
        scale_search=_scale_search(report) if plan.nvfp4_scale_search else None,
    )


def _scale_search(report: VerifyReport) -> ScaleSearch | None:
    """As verify measured it; None where it did not come to that."""
    for check in report.checks:
        if check.id == "dequantized-error" and "relative_mse" in check.evidence:
            return ScaleSearch(
                relative_mse=check.evidence["relative_mse"], plain_relative_mse=check.evidence["plain_relative_mse"]
            )
    return None


def summarize_head(plan: HeadPlan, report: VerifyReport) -> Summary:
    """A rewritten matrix counts once, in however many parts it is stored."""
    statuses = [check.status for check in report.checks]
    return Summary(
        source_bytes=plan.source_bytes,
        variant_bytes=plan.variant_bytes,
        tensors_quantized=sum(output.name.endswith(".weight_packed") for output in plan.added),
        tensors_kept=plan.kept,
        checks_passed=statuses.count(CheckStatus.PASS),
        checks_warned=statuses.count(CheckStatus.WARN),
        checks_failed=statuses.count(CheckStatus.FAIL),
    )


class Sealed(NamedTuple):
    manifest: Manifest
    adopted: bool
    """The variant was there already, with the same bytes."""


class VariantStore:
    def __init__(self, data_dir: Path, variant: str) -> None:
        self.folder = data_dir / "variants" / variant
        self.evidence = data_dir / "evidence" / variant
        self._variant = variant

    @property
    def _manifest_path(self) -> Path:
        return self.evidence / "manifest.json"

    @property
    def _tombstone(self) -> Path:
        """There when retention removed the variant."""
        return self.evidence / "tombstone.json"

    def write_report(self, job: str, report: VerifyReport) -> None:
        """Keep a verify report, also of a variant that failed and will never be sealed."""
        folder = self.evidence / job
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "verify.json", report.model_dump_json(by_alias=True, indent=1).encode())
        sync(self.evidence)

    def write_acceptance(self, job: str, acceptance: Acceptance, profile: Mapping[str, object]) -> None:
        """Keep what a benchmark found, also of a variant that failed its gate."""
        folder = self.evidence / job
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "acceptance.json", acceptance.model_dump_json(by_alias=True, indent=1).encode())
        write_atomic(folder / "profile.json", json.dumps(profile, indent=1).encode())
        sync(self.evidence)

    def write_choice(self, job: str, choice: Choice) -> None:
        """Keep what was weighed before the variant was chosen."""
        folder = self.evidence / job
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "choice.json", choice.model_dump_json(by_alias=True, indent=1).encode())
        sync(self.evidence)

    def manifest(self) -> Manifest:
        """Of the sealed variant."""
        return Manifest.model_validate_json(self._manifest_path.read_bytes())

    def find(self) -> Summary | None:
        """What the newest report says of the sealed variant; None when there is none that may be served.

        That is: sealed, with every file of its manifest at its size, and well by its newest report. ProblemError
        (`variant-differs`) when it was damaged.
        """
        if not self._use():
            return None
        report = self._newest_report()
        if report is None or not report.passed:
            return None
        self._check_sizes()
        return self._summary(report).model_copy(update={"acceptance": self.newest_acceptance()})

    def _summary(self, report: VerifyReport) -> Summary:
        record = self.folder / HEAD
        if record.is_file():
            return summarize_head(HeadPlan.model_validate_json(record.read_bytes()), report)
        return summarize(Plan.model_validate_json((self.folder / PLAN).read_bytes()), report)

    def newest_acceptance(self) -> AcceptanceSummary | None:
        """What the newest benchmark found, also of bytes that are not in the store now: anew they would be the same."""
        path = max(self.evidence.glob("*/acceptance.json"), key=lambda path: path.parent.name, default=None)
        if path is None:
            return None
        return AcceptanceSummary.of(path.parent.name, Acceptance.model_validate_json(path.read_bytes()))

    def _newest_report(self) -> VerifyReport | None:
        # Job ids sort by time.
        path = max(self.evidence.glob("*/verify.json"), key=lambda path: path.parent.name, default=None)
        return None if path is None else VerifyReport.model_validate_json(path.read_bytes())

    def _check_sizes(self) -> None:
        manifest = self.manifest()
        offenders = []
        for file in manifest.files:
            path = self.folder / file.path
            size = path.stat().st_size if path.is_file() else None
            if size != file.size:
                offenders.append(Offender(where=file.path, message=f"should have {file.size} bytes", value=size))
        if offenders:
            raise ProblemError("variant-differs", f"sealed variant {self._variant} was damaged", offenders)

    def seal(self, scratch: Path) -> Sealed:
        """Move a verified folder into the store, or adopt the one that is there, when it holds the same bytes.

        Everything is durable before it can be seen. `variant-differs` when the bytes are not those that are there.
        """
        manifest = make_manifest(scratch)
        _freeze(scratch)
        with self._locked():
            if self.folder.exists():
                self._compare(make_manifest(self.folder), manifest)
                self._mark()
                remove_tree(scratch)
                return Sealed(manifest, adopted=True)
            if self._tombstone.is_file():
                self._compare(self.manifest(), manifest)
            write_atomic(self._manifest_path, manifest.model_dump_json(indent=1).encode())
            self.folder.parent.mkdir(exist_ok=True)
            scratch.rename(self.folder)
            # Only now: moving a folder means writing to it, which its own mode would forbid.
            self.folder.chmod(READ_ONLY_FOLDER)
            self._tombstone.unlink(missing_ok=True)
            sync(self.folder)
            sync(self.folder.parent)
        return Sealed(manifest, adopted=False)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process seals a digest at a time: the manifest in evidence is that of the folder in variants."""
        self.evidence.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.evidence / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _use(self) -> bool:
        """Whether the variant is there; it is marked as used then, so that retention leaves it alone."""
        if not self.folder.is_dir() or not self._manifest_path.is_file():
            return False
        with self._locked():
            # Retention removes under this lock.
            if not self.folder.is_dir():
                return False
            self._mark()
        return True

    def _mark(self) -> None:
        os.utime(self._manifest_path)
        self._tombstone.unlink(missing_ok=True)

    def _compare(self, before: Manifest, now: Manifest) -> None:
        there = {file.path: file for file in before.files}
        ours = {file.path: file for file in now.files}
        # The card names the repository, and the same bytes may come from two.
        paths = sorted((there.keys() | ours.keys()) - {CARD})
        offenders = [
            Offender(where=path, message="differs from the sealed variant's file")
            for path in paths
            if there.get(path) != ours.get(path)
        ]
        if offenders:
            raise ProblemError("variant-differs", f"variant {self._variant} was sealed with other bytes", offenders)


def _freeze(folder: Path) -> None:
    for root, folders, files in os.walk(folder):
        for path in (Path(root, name) for name in files):
            # A linked file's mode is its source's too, and is right already.
            if path.stat().st_mode & 0o7777 != READ_ONLY_FILE:
                path.chmod(READ_ONLY_FILE)
        for name in folders:
            Path(root, name).chmod(READ_ONLY_FOLDER)
    sync_tree(folder)
