"""Assemble: everything of the variant beside its weights."""

from pathlib import Path
from typing import Any

from draftmill.plans import Plan
from draftmill.states import Stage
from draftmill_worker import stage
from draftmill_worker.assemble.assemble import assemble
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.quantize.existing import read_drafter


def run(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    pulled = request.previous[Stage.PULL]
    plan = Plan.model_validate(request.previous[Stage.PLAN]["plan"])
    source = Path(pulled["folder"])
    checkpoint = open_checkpoint(source)
    result = assemble(
        source,
        checkpoint,
        read_drafter(checkpoint, plan.format, request.spec.quantize),
        plan,
        request.variant,
        repo=pulled["repo"],
        commit=pulled["commit"],
    )
    for warning in result.warnings:
        report.log("warning", warning)
    return {"serve_command": result.serve_command, "written": result.written, "copied": result.copied}


if __name__ == "__main__":
    stage.main(run)
