"""Seal: the verified folder becomes a variant by one rename, if its source is still what was pulled."""

from pathlib import Path
from typing import Any

from draftmill.problems import ProblemError
from draftmill.reports import Manifest
from draftmill.states import Stage
from draftmill_worker import stage
from draftmill_worker.checkpoint.identity import changed
from draftmill_worker.variants import VariantStore


def run(request: stage.StageRequest, report: stage.Reporter) -> dict[str, Any]:
    pulled = request.previous[Stage.PULL]
    manifest = Manifest.model_validate(pulled["manifest"])
    offenders = changed(Path(pulled["folder"]), pulled["identity"], manifest)
    if offenders:
        raise ProblemError("source-changed", "the source changed while the job ran", offenders)
    # Without a passed verify there is no summary and nothing is sealed.
    summary = request.previous[Stage.VERIFY]["summary"]
    variant = request.previous[Stage.PLAN]["resolved_spec"]["variant"]
    sealed = VariantStore(request.data_dir, variant).seal(request.variant)
    if sealed.adopted:
        report.log("info", f"variant {variant} was sealed meanwhile with the same bytes")
    return {"summary": summary, "files": len(sealed.manifest.files), "adopted": sealed.adopted}


if __name__ == "__main__":
    stage.main(run)
