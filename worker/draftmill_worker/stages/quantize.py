"""Quantize: the weight files of the variant, written into scratch."""

import os
from pathlib import Path
from typing import Any

from draftmill.plans import Plan
from draftmill.states import Stage
from draftmill_worker import devices, stage
from draftmill_worker.quantize.stream import quantize


def _device(request: stage.StageRequest) -> str:
    """The GPU that this process has to itself, the only one that it sees from here on; else as set."""
    shown = devices.visible(request.devices)
    os.environ.update(shown)
    return "cuda:0" if shown else request.settings.device


def _may_link(request: stage.StageRequest) -> bool:
    """Only what the service alone owns: a local source may itself be linked to files that its owner writes to."""
    return request.previous[Stage.PULL]["repo"] is not None or not request.settings.link_local


def run(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    plan = Plan.model_validate(request.previous[Stage.PLAN]["plan"])
    request.variant.mkdir(parents=True)

    def progress(done: int, total: int) -> None:
        report.progress(done, total, "bytes")

    done = quantize(
        Path(request.previous[Stage.PULL]["folder"]),
        plan,
        request.variant,
        progress=progress,
        # Sealing makes all files durable at once.
        fsync=False,
        device=_device(request),
        threads=request.settings.threads,
        link=_may_link(request),
    )
    if (gained := done.scale_search) is not None:
        errors = f"{gained.relative_mse:.3e}, with plain max {gained.plain_relative_mse:.3e}"
        report.log("info", f"block scales searched: relative mean square error of weights {errors}")
    for file, why in done.copied.items():
        report.log("info", f"{file} was copied whole: {why}")
    return {"copied": done.copied}


if __name__ == "__main__":
    stage.main(run)
