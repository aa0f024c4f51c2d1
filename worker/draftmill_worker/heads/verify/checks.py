"""The checks, by topic. Importing this registers them all, in the order they run."""

from draftmill_worker.heads.verify import (  # noqa: I001  (the order of running: what others build on comes first)
    tensors,
    packed,
    settings,
    draft,
)
from draftmill_worker.heads.verify.registry import CHECKS

__all__ = ["CHECKS", "draft", "packed", "settings", "tensors"]
