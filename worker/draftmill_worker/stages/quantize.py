"""Quantize: the weight files of the variant, written into scratch."""

from pathlib import Path
from typing import Any

from draftmill.plans import Plan
from draftmill.states import Stage
from draftmill_worker import stage
from draftmill_worker.quantize.stream import quantize


def run(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    plan = Plan.model_validate(request.previous[Stage.PLAN]["plan"])
    request.variant.mkdir(parents=True)

    def progress(done: int, total: int) -> None:
        report.progress(done, total, "bytes")

    quantize(
        Path(request.previous[Stage.PULL]["folder"]),
        plan,
        request.variant,
        progress=progress,
        # Sealing makes all files durable at once.
        fsync=False,
        device=request.settings.device,
        threads=request.settings.threads,
    )
    return {}


if __name__ == "__main__":
    stage.main(run)
