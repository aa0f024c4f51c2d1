"""The source is what it was."""

from draftmill_worker.checkpoint.hashing import sha256_file
from draftmill_worker.checkpoint.identity import changed
from draftmill_worker.checkpoint.manifest import inside
from draftmill_worker.verify.registry import Result, check, skipped
from draftmill_worker.verify.view import View


@check(
    "source-unchanged",
    reads="inode, size, mtime and ctime of every source file; their SHA-256 where a manifest was given",
    proves="the job did not touch its source",
)
def source_unchanged(view: View) -> Result:
    if view.source_identity is None and view.source_manifest is None:
        return skipped("neither identity nor manifest of the source was given")
    result = Result(evidence={"identity": len(view.source_identity or ()), "hashed": 0})
    if view.source_identity is not None:
        result.offenders += changed(view.source, dict(view.source_identity), view.source_manifest)
    if view.source_manifest is not None and view.deep:
        for file in view.source_manifest.files:
            path = inside(view.source, file.path)
            digest = sha256_file(path) if path.is_file() else None
            if digest != file.sha256:
                result.blame(file.path, f"SHA-256 was {file.sha256}", digest)
        result.evidence["hashed"] = len(view.source_manifest.files)
    return result
