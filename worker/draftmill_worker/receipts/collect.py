"""The receipt of a boot from what was seen of it. Rules are judged afterwards: see `rules.validate`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftmill.benchmarks import ArmName, Counts
from draftmill.receipts import Checkpointed, EngineView, PhaseRecord, Receipt
from draftmill.reports import Manifest
from draftmill_worker.receipts import engine_log, normalise
from draftmill_worker.receipts.archive import Boot
from draftmill_worker.receipts.environment import environment
from draftmill_worker.receipts.host import host
from draftmill_worker.receipts.normalise import Roots
from draftmill_worker.receipts.redact import Redactor
from draftmill_worker.receipts.versions import engine_build, versions

EMULATION = "Emulation"
"""In the class name of every kernel that computes a format's numbers without hardware for it."""


def checkpointed(
    manifest: Manifest, *, repo: str | None, commit: str | None, path: Path, variant: str | None = None
) -> Checkpointed:
    """A model directory as it was given to the engine: the repository it is from, or else the folder's last name.

    A variant is named by its source, whose commit it has; where it lay is of no account.
    """
    return Checkpointed(source=repo or path.name, commit=commit, variant=variant, files=manifest.files)


@dataclass(frozen=True)
class Seen:
    """One boot, as its parent and the engine saw it."""

    arm: ArmName
    phases: Sequence[PhaseRecord]
    argv: Sequence[str]
    environ: Mapping[str, str]
    """The engine's, whole."""
    speculative_config: Mapping[str, Any] | None
    """As asked for."""
    engine_config: Mapping[str, Any]
    """As resolved by the engine, through `describe`."""
    target: Checkpointed
    drafter: Checkpointed | None
    view: EngineView | None
    counts: Counts | None
    output_sha256: str | None
    prompts_sha256: str
    roots: Mapping[str, Path]
    """Folders by what stands for them. `target` and `drafter` are the two models; name the boot's own folders too: its
    compile cache, its scratch, the data directory, the temporary directory."""
    plugins: Sequence[str] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    job: str | None = None
    attempt: int | None = None
    devices: Sequence[str] = ()


def collect(boot: Boot, seen: Seen) -> Receipt:
    """The receipt, with no rule judged. Reads the boot's logs, this machine and what is installed here."""
    roots, redactor = Roots(seen.roots), Redactor(os.environ, seen.environ)

    def tidy(value: Any) -> Any:
        return normalise.config(_redacted(value, redactor), roots)

    return Receipt(
        boot=boot.id,
        job=seen.job,
        attempt=seen.attempt,
        arm=seen.arm,
        phases=tuple(seen.phases),
        versions=versions(),
        engine_build=engine_build(),
        host=host(),
        argv=tuple(redactor.text(word) for word in seen.argv),
        speculative_config=None if seen.speculative_config is None else tidy(dict(seen.speculative_config)),
        engine_config=tidy(dict(seen.engine_config)),
        environment=environment(seen.environ, roots, redactor),
        devices=tuple(seen.devices),
        target=seen.target,
        drafter=seen.drafter,
        view=seen.view,
        counts=seen.counts,
        output_sha256=seen.output_sha256,
        prompts_sha256=seen.prompts_sha256,
        emulated=emulated(seen.view),
        plugins=tuple(seen.plugins),
        warnings=engine_log.warnings(boot.stdout.read_bytes() + b"\n" + boot.stderr.read_bytes(), roots, redactor),
        timings=dict(seen.timings),
        rules=(),
        chain=boot.link,
    )


def emulated(view: EngineView | None) -> bool:
    return view is not None and any(EMULATION in (module.kernel or "") for module in view.modules)


def _redacted(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, dict):
        return {key: _entry(str(key), item, redactor) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, redactor) for item in value]
    return redactor.text(value) if isinstance(value, str) else value


def _entry(key: str, value: Any, redactor: Redactor) -> Any:
    return redactor.variable(key, value) if isinstance(value, str) else _redacted(value, redactor)
