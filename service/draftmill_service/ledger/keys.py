"""Names in Redis: keys of the ledger, and what rings the worker.

Everything of the ledger lies under one prefix. The scripts build their keys from the prefix and a job's id, so
the ledger needs a single Redis server (or a primary with replicas), not a cluster.
"""

import re
from typing import Final

PREFIX: Final = "draftmill"

JOBS_QUEUE: Final = "draftmill.jobs"
"""Celery queue of the doorbell; on the Redis transport also the key of the list that holds its messages."""
BATCHES_QUEUE: Final = "draftmill.batches"
"""The same for items of batches, so that a single job does not wait behind them."""
JOB_ID_IN_BELL: Final = "THEJOBSID"
"""Stands for the job's id in a message that is made before the job."""
LOOK_TASK: Final = "draftmill.look"
"""Task with one argument, the id of a job to look at."""
PREFLIGHT_QUEUE: Final = "draftmill.preflight"
PREFLIGHT_TASK: Final = "draftmill.preflight"
"""Task with one argument, the id of a preflight to answer."""

MAX_EVENTS: Final = 10_000
"""About how many events a job's stream keeps; the oldest go first."""


PLACE: Final = re.compile(r"^[0-9]{1,6}$")
"""Number of a batch's item, as cursors hold it."""


class Keys:
    def __init__(self, prefix: str = PREFIX) -> None:
        self.prefix = prefix
        self.all = f"{prefix}:ix:all"
        """Sorted set of every job id, all scores 0: ids sort by submission. The other indexes are like it."""
        self.batches = f"{prefix}:ix:batches"
        """The same of every batch id."""
        self.queued = f"{prefix}:queued"
        """Queued jobs by the time (ms) their doorbell last rang; 0 for at once."""
        self.queued_items = f"{prefix}:queued:batches"
        """The same of items whose turn in their batch has come."""
        self.line = f"{prefix}:line"
        """Queued jobs, without those of batches, by the time (ms) they were queued."""
        self.unarchived = f"{prefix}:unarchived"
        """Done jobs whose record is not on the disk yet, by the time (ms) of their ending."""
        self.unarchived_batches = f"{self.unarchived}:batches"
        """The same of batches."""
        self.leases = f"{prefix}:leases"
        """Running and canceling jobs by the time (ms) their lease ends."""
        self.deadlines = f"{prefix}:deadlines"
        """Jobs not done, by deadline (ms)."""
        self.workers = f"{prefix}:workers"
        """Workers by the time (ms) at which they are gone unless they show themselves again."""
        self.reaper = f"{prefix}:reaper"
        """Token of the process that reaps."""
        self.chains = f"{prefix}:chains"
        """Hash: writer of receipts to the head of its chain, as `<sequence>:<sha256>`."""

    def job(self, job_id: str) -> str:
        """Hash with the job's record; records.py reads it."""
        return f"{self.prefix}:job:{job_id}"

    def events(self, job_id: str) -> str:
        return f"{self.prefix}:events:{job_id}"

    def tombstone(self, name: str) -> str:
        """Set when retention removed the job, or the batch, of this id."""
        return f"{self.prefix}:tombstone:{name}"

    def batch(self, batch_id: str) -> str:
        """Hash with the batch's record; scripts/batching.lua names its fields and what lies beside it."""
        return f"{self.prefix}:batch:{batch_id}"

    def items(self, batch_id: str) -> str:
        """List of the ids of a batch's jobs, by number."""
        return f"{self.batch(batch_id)}:items"

    def index(self, dimension: str, value: str) -> str:
        """`dimension` is state, format, family or label, of batches batch-state or batch-label; a label's value is
        `key` or `key=value`."""
        return f"{self.prefix}:ix:{dimension}:{value}"

    def worker(self, name: str) -> str:
        """Hash with what a worker says of itself, `about` and `since`; it lapses."""
        return f"{self.prefix}:worker:{name}"

    def preflight(self, preflight_id: str) -> str:
        return f"{self.prefix}:preflight:{preflight_id}"

    def preflight_answer(self, preflight_id: str) -> str:
        return f"{self.prefix}:preflight:{preflight_id}:answer"
