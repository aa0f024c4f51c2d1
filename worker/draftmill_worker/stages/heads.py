"""Heads: the variant of a job that rewrites a head or cuts a draft vocabulary, in scratch."""

import json
from pathlib import Path
from typing import Any

import torch

from draftmill.heads import Coverage
from draftmill.states import Stage
from draftmill_worker import stage
from draftmill_worker.heads.mill import CAPTURE, IDS, Asked, mill_head
from draftmill_worker.heads.rows import FILE, open_rows


def run(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    spec, learned, taken = request.spec, request.previous[Stage.CAPTURE], request.scratch / CAPTURE
    if request.settings.threads is not None:
        torch.set_num_threads(request.settings.threads)
    ids = None
    if spec.draft_vocab is not None:
        ids = torch.tensor(json.loads((taken / IDS).read_bytes()), dtype=torch.int64)
    asked = Asked(
        spec.head,
        spec.draft_vocab,
        ids,
        tuple(Coverage.model_validate(one) for one in learned["coverage"]),
        open_rows(taken / FILE) if spec.reads_hidden_states else None,
    )
    plan = mill_head(
        Path(request.previous[Stage.PULL]["folder"]),
        asked,
        request.variant,
        request.scratch / "heads",
        lambda done, total: report.progress(done, total, "bytes"),
    )
    found = plan.report
    if found is not None and found.rtn is not None:
        gptq = "" if found.gptq is None else f", {found.method} {found.gptq.kl:.3g}"
        report.log("info", f"KL to the unquantized head on held-out rows: rtn {found.rtn.kl:.3g}{gptq}")
    return {"plan": plan.model_dump(mode="json", by_alias=True)}


if __name__ == "__main__":
    stage.main(run)
