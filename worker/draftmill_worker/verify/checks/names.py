"""Names, places and sizes: the output set is the plan's, each tensor is in one file, the index says so."""

import re
from collections import Counter
from typing import Any

from draftmill_worker.checkpoint.checkpoint import INDEX
from draftmill_worker.verify import embedded
from draftmill_worker.verify.registry import Result, check
from draftmill_worker.verify.view import PLAN, View, same_json

LAYER = re.compile(r"(?:model\.|language_model\.)*(midlayer|layers\.(\d+))\.")
PREDICTOR = re.compile(r"(?:model\.)?mtp(?:\.layers|_layers|_block)\.(\d+)\.")


@check(
    "names-complete",
    reads="headers, plan",
    after=("headers-sane",),
    proves="names in = names out: the tensors are exactly the plan's output set, and the plan covers the source",
)
def names_complete(view: View) -> Result:
    planned = {tensor.name for tensor in view.plan.tensors}
    passed = {name for name, info in view.source_checkpoint.tensors.items() if info.file in view.whole_files}
    found, wanted = view.tensors.keys() - passed, view.expected.keys()
    source = view.source_checkpoint.tensors.keys() - passed
    result = Result(evidence={"source": len(source), "planned": len(wanted), "written": len(found)})
    for name in sorted(passed - view.tensors.keys()):
        result.blame(name, "a tensor of a file that is passed on whole; it is not there")
    for name in sorted(wanted - found):
        result.blame(name, "the plan writes this tensor; it is not there")
    for name in sorted(found - wanted):
        result.blame(name, "the plan does not write this tensor")
    for name in sorted(source - planned):
        result.blame(name, "a tensor of the source has no fate in the plan")
    for name in sorted(planned - source):
        result.blame(name, "the plan names a tensor that the source does not have")
    return result


@check(
    "one-file-per-tensor",
    reads="headers, plan",
    after=("names-complete",),
    proves="each tensor is stored once, in the file the plan names: of two copies, chance decides which one loads",
)
def one_file_per_tensor(view: View) -> Result:
    places = Counter(name for header in view.headers.values() for name in header)
    result = Result(evidence={"tensors": len(places), "files": len(view.headers)})
    for file, header in view.headers.items():
        for name in header:
            passed = file in view.whole_files
            planned = view.source_checkpoint.tensors[name].file if passed else view.expected[name][1].file
            if places[name] > 1:
                result.blame(name, f"stored {places[name]} times", file)
            elif planned != file:
                result.blame(name, f"stored in {file}, planned in {planned}")
    return result


@check(
    "layers-present",
    reads="headers, config.json",
    after=("names-complete", "documents-readable"),
    proves="every draft layer that config.json promises is stored: an engine serves a missing one uninitialised",
)
def layers_present(view: View) -> Result:
    settings = embedded.language(view.settings)
    promised = settings.get("num_hidden_layers")
    counts = (settings.get(key) for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"))
    predictors = max((count for count in counts if isinstance(count, int)), default=0)
    stored = {0 if match[2] is None else int(match[2]) for match in map(LAYER.match, view.tensors) if match}
    result = Result(evidence={"promised": promised, "predictors": predictors, "stored": sorted(stored)})
    if not isinstance(promised, int):
        return result
    beyond = stored - set(range(promised))
    if not stored >= set(range(promised)) or len(beyond) > predictors:
        result.blame("config.json: num_hidden_layers", f"layers {sorted(stored)} are stored", promised)
    found = len(beyond) or len({match[1] for match in map(PREDICTOR.match, view.tensors) if match})
    if found < predictors:
        message = f"{predictors} further predicting layers are promised, {found} are stored"
        result.blame("config.json: num_nextn_predict_layers", message, predictors)
    return result


@check(
    "index-agrees",
    reads="the index, headers",
    after=("one-file-per-tensor", "documents-readable"),
    proves="weight_map and headers agree in both directions, and total_size counts the tensors' bytes",
)
def index_agrees(view: View) -> Result:
    if view.index is None:
        return Result(evidence={"index": None})
    weight_map = view.index.get("weight_map")
    listed: dict[str, Any] = weight_map if isinstance(weight_map, dict) else {}
    result = Result(evidence={"listed": len(listed), "stored": len(view.tensors)})
    for name in sorted(listed.keys() | view.tensors.keys()):
        stored = view.tensors[name].file if name in view.tensors else None
        if listed.get(name) != stored:
            result.blame(name, f"the index says {listed.get(name)}, the headers {stored}")
    metadata = view.index.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    total = sum(tensor.nbytes for tensor in view.tensors.values())
    if not same_json(size, total):
        result.blame(f"{INDEX}: metadata.total_size", f"the tensors have {total} bytes", size)
    return result


@check(
    "sizes-agree",
    reads="headers of source and variant, plan",
    after=("one-file-per-tensor",),
    proves="the sizes that the plan and the job report are the bytes that the headers count",
)
def sizes_agree(view: View) -> Result:
    written = sum(tensor.nbytes for tensor in view.tensors.values())
    read = view.source_checkpoint.nbytes
    result = Result(evidence={"source_bytes": read, "variant_bytes": written})
    if view.plan.variant_bytes != written:
        result.blame("plan.variant_bytes", f"the headers count {written}", view.plan.variant_bytes)
    if view.plan.source_bytes != read:
        result.blame("plan.source_bytes", f"the headers count {read}", view.plan.source_bytes)
    return result


@check(
    "plan-recorded",
    reads="plan.json",
    after=("documents-readable",),
    proves="the plan in the folder is the plan that was carried out",
)
def plan_recorded(view: View) -> Result:
    plan = view.plan.model_dump(mode="json", by_alias=True)
    result = Result(evidence={"tensors": len(view.plan.tensors)})
    for key in sorted(plan.keys() | view.recorded_plan.keys()):
        if not same_json(plan.get(key), view.recorded_plan.get(key)):
            result.blame(f"{PLAN}: {key}", "differs from the plan that was carried out")
    return result
