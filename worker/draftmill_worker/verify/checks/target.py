"""A target in the drafter's own checkpoint: whatever is not the MTP block is what it was."""

import filecmp

from draftmill.plans import Family, Fate
from draftmill_worker.verify import embedded
from draftmill_worker.verify.registry import Result, check
from draftmill_worker.verify.view import View


@check(
    "whole-files-identical",
    reads="weight files that hold no tensor of the MTP block, in source and variant",
    after=("headers-sane",),
    proves="they are the source's, byte for byte: the same file under a second name, or an equal copy",
)
def whole_files_identical(view: View) -> Result:
    result = Result(evidence={"linked": 0, "copied": 0})
    for file in view.plan.untouched:
        ours, theirs = view.variant / file.file, view.source / file.file
        if ours.samefile(theirs):
            result.evidence["linked"] += 1
        elif filecmp.cmp(ours, theirs, shallow=False):
            result.evidence["copied"] += 1
        else:
            result.blame(file.file, "differs from the source's file")
        stored = list(view.headers[file.file].values())
        if (len(stored), sum(info.nbytes for info in stored)) != (file.tensors, file.nbytes):
            result.blame(file.file, f"the plan counts {file.tensors} tensors of {file.nbytes} bytes", len(stored))
    return result


@check(
    "target-untouched",
    reads="plan, config.json",
    after=("names-complete", "documents-readable"),
    proves="no tensor outside the MTP block is quantized or cast, and no file with one of its tensors is passed whole",
)
def target_untouched(view: View) -> Result:
    if view.plan.family is not Family.MTP:
        return Result(evidence={"target": None})
    block = [tensor for tensor in view.plan.tensors if embedded.in_block(tensor.name, view.settings)]
    result = Result(evidence={"block": len(block), "target": len(view.source_checkpoint.tensors) - len(block)})
    if not block:
        result.blame("plan", "names no tensor of an MTP block")
    for tensor in view.plan.tensors:
        if tensor.fate is not Fate.KEPT and not embedded.in_block(tensor.name, view.settings):
            result.blame(tensor.name, f"is {tensor.fate}, and the target's")
    for name, info in view.source_checkpoint.tensors.items():
        if info.file in view.whole_files and embedded.in_block(name, view.settings):
            result.blame(name, f"is the block's, and {info.file} is passed whole")
    return result
