"""Recognises a drafter's family by its tensors and its configuration together."""

from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.checkpoint.drafter import Drafter

__all__ = ["Drafter", "detect"]


def detect(checkpoint: Checkpoint) -> Drafter:
    """The drafter in the checkpoint.

    Raises `already-quantized`, `unknown-family`, `head-ambiguous`, `tied-head-mismatch`, `target-layers-missing`,
    `shape-mismatch`, `missing-tensors` or `promised-layers-missing`, with every offender.
    """
    raise NotImplementedError(checkpoint)
