"""The folder itself: plain files, the weights the plan names and no others, headers and documents that can be read."""

import stat

from draftmill_worker.checkpoint.checkpoint import INDEX
from draftmill_worker.verify.registry import Result, check
from draftmill_worker.verify.view import CARD, HF_QUANT_CONFIG, PLAN, SINGLE_FILE, View

# Executable, writable by others, set-uid and the like.
UNWANTED_MODE = 0o7133


@check(
    "regular-files",
    reads="modes and link counts of every entry",
    proves="everything in the folder is a plain file: no symbolic link, no device, no second name but a source's file "
    "that is passed on whole",
)
def regular_files(view: View) -> Result:
    result = Result(evidence={"files": len(view.entries)})
    for path, mode, links in view.entries:
        if not stat.S_ISREG(mode):
            result.blame(path, "not a regular file", stat.filemode(mode))
        elif links != 1 and not (path in view.whole_files and (view.variant / path).samefile(view.source / path)):
            result.blame(path, "another name outside could change this file", links)
        elif stat.S_IMODE(mode) & UNWANTED_MODE or not mode & stat.S_IRUSR:
            result.blame(path, "unwanted permissions", stat.filemode(mode))
    return result


@check(
    "weight-files-listed",
    reads="names of weight files, at any depth",
    proves="the weight files are those of the plan: loaders read every such file they find, stale ones too",
)
def weight_files_listed(view: View) -> Result:
    found = set(view.weight_files())
    result = Result(evidence={"files": sorted(found)})
    for file in sorted(found - view.planned_files):
        result.blame(file, "the plan does not write this weight file")
    for file in sorted(view.planned_files - found):
        result.blame(file, "the plan writes this file; it is not there")
    return result


@check(
    "headers-sane",
    reads="headers of the weight files, by our parser and by the safetensors library",
    after=("weight-files-listed",),
    proves="both readers find the same tensors, bytes fill each file without holes, and dtypes and shapes fit them",
)
def headers_sane(view: View) -> Result:
    result = Result(evidence={"files": len(view.headers), "tensors": len(view.tensors)})
    for file, header in view.headers.items():
        ours = {name: (info.dtype, info.shape) for name, info in header.items()}
        theirs = view.written.header(file)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                result.blame(f"{file}: {name}", f"we read {ours.get(name)}, the library {theirs.get(name)}")
    return result


@check(
    "documents-readable",
    reads="config.json, hf_quant_config.json, plan.json, README.md, the index",
    proves="each is there and parses; the index is there exactly when loaders need one",
)
def documents_readable(view: View) -> Result:
    result = Result()
    documents = [view.config, view.hf_quant_config, view.recorded_plan]
    sharded = view.planned_files != {SINGLE_FILE}
    if sharded != (view.index is not None):
        result.blame(INDEX, "several weight files need an index" if sharded else "one weight file needs no index")
    if not view.card.strip():
        result.blame(CARD, "empty")
    result.evidence = {"documents": ["config.json", HF_QUANT_CONFIG, PLAN], "keys": [len(item) for item in documents]}
    return result
