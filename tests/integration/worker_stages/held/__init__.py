"""The real stages, held still where the job's label says: {"hold": "quantize:during"}, in its first attempt alone.

A label "hold_item" says of which item of a batch: {"hold_item": "org/drafter fp8"}.

A label "meddle" spoils the variant before verify, or the source before seal.

`before` the stage starts, `during` it at its first report of progress, or `after` it, before its result is written.
"""

from draftmill_worker.stages import PRELOAD, warm

__all__ = ["PRELOAD", "warm"]
