"""Makes a loadable variant directory around weights that are already in it."""

from draftmill_worker.assemble.assemble import AssembleResult, assemble

__all__ = ["AssembleResult", "assemble"]
