"""Choose: the format, and what stays as it is, of a job that leaves both to a budget."""

from pathlib import Path
from typing import Any

from draftmill.states import Stage
from draftmill_worker import stage
from draftmill_worker.choose.choose import Search
from draftmill_worker.choose.engine import Engine
from draftmill_worker.stages import engines


def _engine(request: stage.StageRequest, report: stage.Reporter) -> Engine | None:
    if request.spec.benchmark is None:
        return None
    pulled = request.previous[Stage.PULL]
    return Engine(
        engines.directory(pulled["target"]),
        engines.directory(pulled),
        request.spec.benchmark,
        engines.prompts_file(pulled),
        request.settings.trust_remote_code_repos,
        engines.place(request),
        report,
    )


def run(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    if request.spec.auto is None:
        raise ValueError("the job names its format")
    scratch = request.scratch / "choose"
    scratch.mkdir(parents=True)
    search = Search(
        Path(request.previous[Stage.PULL]["folder"]),
        request.spec.quantize,
        request.spec.auto,
        _engine(request, report),
        scratch,
        report,
    )
    choice = search.run()
    chosen = choice.choice
    kept = f", {len(chosen.kept)} modules kept" if chosen.kept else ""
    searched = ", scale search" if chosen.scale_search else ""
    report.log("info", f"chosen: {chosen.format}{searched}{kept}: {choice.why}")
    return {"choice": choice.model_dump(mode="json", by_alias=True)}


if __name__ == "__main__":
    stage.main(run)
