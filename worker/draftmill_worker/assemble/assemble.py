"""Everything of a variant but its weights, which the quantizer wrote into the folder before."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftmill.plans import Plan
from draftmill_worker.assemble.card import model_card
from draftmill_worker.assemble.configs import needs_index, variant_config, weight_index
from draftmill_worker.assemble.modules import collect
from draftmill_worker.assemble.serve import serve_command
from draftmill_worker.assemble.sidecars import sidecars
from draftmill_worker.assemble.write import copy_file, write_json, write_text
from draftmill_worker.checkpoint.checkpoint import CONFIG, INDEX, Checkpoint
from draftmill_worker.checkpoint.drafter import Drafter
from draftmill_worker.checkpoint.manifest import inside
from draftmill_worker.quantize.config import hf_quant_config

PLAN = "plan.json"
CARD = "README.md"
HF_QUANT_CONFIG = "hf_quant_config.json"


@dataclass(frozen=True)
class AssembleResult:
    written: tuple[str, ...]
    """Files made here, sorted."""
    copied: tuple[str, ...]
    """Files taken from the source byte for byte, sorted."""
    serve_command: str
    warnings: tuple[str, ...]


def assemble(
    source: Path,
    checkpoint: Checkpoint,
    drafter: Drafter,
    plan: Plan,
    out: Path,
    *,
    repo: str | None,
    commit: str | None,
) -> AssembleResult:
    """Writes config.json, hf_quant_config.json and the index where they are read, plan.json and README.md into `out`,
    and copies the source's sidecars and `auto_map` modules. Every file is a regular file of its own.

    Raises `unsafe-path`, `malformed-config`, `incomplete-checkpoint` or `pickle-refused` before the first file is
    written, and FileExistsError where `out` holds a file of such a name.
    """
    names = sidecars(source)
    modules = collect(source, [CONFIG, *(name for name in names if name.endswith("_config.json"))], repo)
    warnings = tuple(
        f"`{reference}` is code of another repository: nothing of it is in this folder"
        for reference in modules.elsewhere
    )
    copied = tuple(sorted({*names, *modules.files}))
    paths = {name: inside(source, name) for name in copied}
    for name, path in paths.items():
        copy_file(path, out / name)
    documents: dict[str, Any] = {
        CONFIG: variant_config(checkpoint, plan),
        PLAN: plan.model_dump(mode="json", by_alias=True),
    }
    nested = hf_quant_config(plan)
    if nested is not None:
        documents[HF_QUANT_CONFIG] = nested
    if needs_index(plan):
        documents[INDEX] = weight_index(checkpoint, plan)
    for name, value in documents.items():
        write_json(out / name, value)
    write_text(out / CARD, model_card(drafter, plan, repo=repo, commit=commit, files=copied, notes=warnings))
    return AssembleResult(
        written=tuple(sorted([*documents, CARD])),
        copied=copied,
        serve_command=serve_command(drafter, plan),
        warnings=warnings,
    )
