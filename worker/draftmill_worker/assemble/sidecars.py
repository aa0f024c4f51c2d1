"""Which files of a source belong beside the weights of a variant."""

from pathlib import Path

from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.checkpoint import CONFIG, INDEX, WEIGHTS_SUFFIX
from draftmill_worker.pull.listing import MASK_EMBEDDING, allowed


def sidecars(source: Path) -> tuple[str, ...]:
    """Names of the root files to copy, sorted: what a pull takes, without what a variant has of its own.

    Old quantization files, pickles and training state are not among them. Raises `pickle-refused` for a DFlash mask
    embedding: vLLM reads that file where it is there, so that a variant without it would be another drafter.
    """
    names = sorted(path.name for path in source.iterdir() if path.is_file())
    if MASK_EMBEDDING in names:
        offender = Offender(where=MASK_EMBEDDING, message="store it as the embedding's row of the mask token instead")
        raise ProblemError("pickle-refused", "the drafter's mask embedding is published as pickle", [offender])
    return tuple(name for name in names if is_sidecar(name))


def is_sidecar(name: str) -> bool:
    return allowed(name) and name not in (CONFIG, INDEX) and not name.endswith(WEIGHTS_SUFFIX)
