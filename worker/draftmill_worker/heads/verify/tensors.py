"""Files, names and bytes: what was meant to change did, and nothing else."""

import numpy as np

from draftmill_worker.checkpoint.headers import TensorInfo
from draftmill_worker.checkpoint.identity import changed
from draftmill_worker.heads.rewrite import ASIDE
from draftmill_worker.heads.source import BACKUPS
from draftmill_worker.heads.tensors import CHUNK
from draftmill_worker.heads.variant import STORED
from draftmill_worker.heads.verify.registry import check
from draftmill_worker.heads.verify.view import View
from draftmill_worker.quantize.formats.pack_quantized import PACKED, SCALE, SHAPE
from draftmill_worker.verify.registry import Result, skipped


@check("head-shards", "index and shards agree both ways, and no tensor is stored twice: chance decides which one loads")
def shards(view: View) -> Result:
    result = Result(evidence={"tensors": len(view.after.tensors), "files": len(view.after.files)})
    leftovers = (ASIDE, *BACKUPS)
    for path in view.variant.iterdir():
        if path.name.endswith(leftovers) or path.is_symlink():
            result.blame(path.name, "does not belong in a variant")
    return result


@check("head-names", "the tensors are the source's, without those replaced and with those planned, and none is stale")
def names(view: View) -> Result:
    found, plan = view.after.tensors, view.plan
    added = {output.name: (output.dtype, output.shape) for output in plan.added}
    wanted = (view.before.tensors.keys() - set(plan.removed)) | added.keys()
    result = Result(evidence={"wanted": len(wanted), "found": len(found)})
    for name in sorted(wanted - found.keys()):
        result.blame(name, "is not there")
    for name in sorted(found.keys() - wanted):
        result.blame(name, "is stale: an engine would load it over, or beside, what replaced it")
    for name, (dtype, shape) in added.items():
        info = found.get(name)
        if info is not None and (info.dtype, info.shape) != (dtype, shape):
            result.blame(name, f"{dtype} {list(shape)} planned", f"{info.dtype} {list(info.shape)}")
    for group in plan.groups:
        for module in group.modules:
            forms = [suffix for suffix in STORED if f"{module}.{suffix}" in found]
            if forms and set(forms) != {PACKED, SCALE, SHAPE}:
                result.blame(module, "is stored in more than one way, or in part", forms)
    return result


@check("head-kept", "every tensor that was not to change is the source's, bit for bit")
def kept(view: View) -> Result:
    result = Result(evidence={"linked": 0, "compared": 0})
    changed_on_purpose = {output.name for output in view.plan.added} | set(view.plan.removed)
    same = {file for file in view.after.files if (view.source / file).exists() and _linked(view, file)}
    for name, info in view.after.tensors.items():
        before = view.before.tensors.get(name)
        if name in changed_on_purpose or before is None:
            continue
        if info.file in same and before.file == info.file:
            result.evidence["linked"] += 1
            continue
        result.evidence["compared"] += 1
        if (info.dtype, info.shape) != (before.dtype, before.shape) or not _equal(view, before, info):
            result.blame(name, "differs from the source")
    return result


def _linked(view: View, file: str) -> bool:
    return (view.source / file).samefile(view.variant / file)


def _equal(view: View, before: TensorInfo, info: TensorInfo) -> bool:
    for start in range(0, info.nbytes, CHUNK):
        count = min(CHUNK, info.nbytes - start)
        one = np.fromfile(view.source / before.file, np.uint8, count, offset=before.start + start)
        two = np.fromfile(view.variant / info.file, np.uint8, count, offset=info.start + start)
        if not np.array_equal(one, two):
            return False
    return True


@check("head-source", "the job did not touch its source")
def source(view: View) -> Result:
    if view.identity is None:
        return skipped("no identity of the source was given")
    result = Result(evidence={"files": len(view.identity)})
    result.offenders += changed(view.source, view.identity, view.manifest)
    return result
