"""Good variants, made by the real engine from small sources, and the means to spoil them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Plan
from draftmill.reports import CheckStatus, VerifyReport
from draftmill_worker.assemble import assemble
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.checkpoint.identity import fingerprint
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.quantize.stream import quantize
from draftmill_worker.verify import verify
from tests.fixtures import mtp
from tests.fixtures.synthetic import Layout
from tests.unit.assemble.sources import edit_config, make_source, to_speculators

Tensors = dict[str, torch.Tensor]


@dataclass
class Case:
    root: Path
    plan: Plan

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def variant(self) -> Path:
        return self.root / "variant"

    def verify(self, cache: Path | None = None, **options: Any) -> VerifyReport:
        """Identity and manifest of the source are those of the moment, unless given."""
        options.setdefault("source_identity", fingerprint(self.source))
        options.setdefault("source_manifest", make_manifest(self.source))
        return verify(self.source, self.variant, self.plan, cache=cache, **options)

    def copy(self, root: Path) -> "Case":
        shutil.copytree(self.root, root, symlinks=True)
        return Case(root, self.plan)

    def edit_plan(self, **changes: Any) -> None:
        """Another plan, recorded in the variant as well."""
        self.plan = self.plan.model_copy(update=changes)
        path = self.variant / "plan.json"
        path.write_text(json.dumps(self.plan.model_dump(mode="json", by_alias=True), sort_keys=True, indent=2) + "\n")

    def edit_json(self, edit: Callable[[dict[str, Any]], object], name: str, *, source: bool = False) -> None:
        for folder in [self.variant, self.source] if source else [self.variant]:
            path = folder / name
            value = json.loads(path.read_text())
            edit(value)
            path.write_text(json.dumps(value, sort_keys=True, indent=2) + "\n")

    def edit_tensors(self, edit: Callable[[Tensors], object], file: str | None = None, *, source: bool = False) -> None:
        """`edit` changes the tensors of one weight file, in place or by adding and deleting."""
        for folder in [self.variant, self.source] if source else [self.variant]:
            path = folder / (file or "model.safetensors")
            tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
            edit(tensors)
            path.unlink()
            save_file(tensors, path, {"format": "pt"})


def build(
    root: Path,
    family: str,
    format: Format,
    options: QuantizeOptions | None = None,
    layout: Layout | None = None,
    speculators: str | None = None,
    extra: Tensors | None = None,
    **config: Any,
) -> Case:
    """A source under `root/source` and its variant under `root/variant`. `config` changes the source's config.json."""
    source = make_source(root / "source", family, layout, extra)
    edit_config(source, **config)
    if speculators is not None:
        to_speculators(source, speculators)
    return build_from(root, source, format, options)


def build_mtp(
    root: Path, format: Format, options: QuantizeOptions | None = None, *, link: bool = False, **fixture: Any
) -> Case:
    """A target with its MTP block; `fixture` goes to tests/fixtures/mtp.py."""
    return build_from(root, mtp.build(root / "source", **fixture), format, options, link=link)


def build_from(
    root: Path, source: Path, format: Format, options: QuantizeOptions | None = None, *, link: bool = False
) -> Case:
    checkpoint = open_checkpoint(source)
    drafter = detect(checkpoint)
    plan = make_plan(checkpoint, drafter, format, options or QuantizeOptions())
    variant = root / "variant"
    variant.mkdir(parents=True)
    quantize(source, plan, variant, fsync=False, link=link)
    assemble(source, checkpoint, drafter, plan, variant, repo="org/tiny", commit="0" * 40)
    return Case(root, plan)


def with_status(report: VerifyReport, status: CheckStatus) -> list[str]:
    return [check.id for check in report.checks if check.status is status]


def explained(report: VerifyReport) -> str:
    """Everything that failed, for an assertion's message."""
    return json.dumps(
        [check.model_dump(mode="json") for check in report.checks if check.status is CheckStatus.FAIL], indent=1
    )
