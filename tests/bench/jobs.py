"""How long a job takes in a warm service: `python -m tests.bench.jobs`.

Twenty distinct jobs, one after another, through `draftmill up`: a tiny EAGLE3 drafter from the Hub stand-in in every
format and with five lists of exclusions, so that none is answered from the store. Timed at the client, from before the
POST until it hears that the job is done; the split is from the ledger's clock.
"""

import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from draftmill import Client, Format, Job, JobSpec, JobState, QuantizeOptions, RepoSource
from tests.e2e.embedded import Up, standin
from tests.fixtures.synthetic import build

REPO = "bench/eagle3"
TARGET_SECONDS = 1.5
EXCLUSIONS = ((), ("*o_proj*",), ("*down_proj*",), ("*.[qkv]_proj*",), ("*gate_proj*", "*up_proj*"))


def specs() -> list[JobSpec]:
    return [
        JobSpec(source=RepoSource(repo=REPO), format=format, quantize=QuantizeOptions(exclude=exclude))
        for exclude in EXCLUSIONS
        for format in Format
    ]


def split(job: Job, submitted: float, heard: float) -> dict[str, float]:
    """Seconds of each part of one job. Client and ledger read the clock of the same machine."""
    attempt = job.attempts[-1]
    assert attempt.ended_at is not None
    parts = {"POST to claim": attempt.started_at.timestamp() - submitted}
    for record in attempt.stages:
        assert record.started_at is not None
        assert record.ended_at is not None
        parts[record.name.value] = (record.ended_at - record.started_at).total_seconds()
    running = (attempt.ended_at - attempt.started_at).total_seconds()
    parts["between stages"] = running - sum(parts[record.name.value] for record in attempt.stages)
    parts["end to client"] = heard - attempt.ended_at.timestamp()
    parts["POST to verified variant"] = heard - submitted
    return parts


def mill(client: Client, spec: JobSpec) -> dict[str, float]:
    submitted = time.time()
    job = client.wait(client.submit(spec))
    heard = time.time()
    if job.state is not JobState.SUCCEEDED or job.cached:
        raise SystemExit(f"job {job.id} is {job.state}, cached: {job.cached}, {job.problem}")
    return split(job, submitted, heard)


def measure(folder: Path) -> dict[str, list[float]]:
    build(folder / "drafter", "eagle3")
    found: dict[str, list[float]] = defaultdict(list)
    with standin({REPO: folder / "drafter"}) as hub, Up(folder / "data", hub) as up, up.client() as client:
        up.wait_until_warm()
        warmup = JobSpec(source=RepoSource(repo=REPO), format=Format.FP8, quantize=QuantizeOptions(dtype="keep"))
        mill(client, warmup)
        for spec in specs():
            for part, seconds in mill(client, spec).items():
                found[part].append(seconds)
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    count = len(specs())
    print(f"{count} distinct jobs in a warm service, tiny drafter (seconds)")
    print(f"{'':26}{'median':>9}{'slowest':>9}")
    for part, seconds in found.items():
        print(f"{part:26}{median(seconds):9.3f}{max(seconds):9.3f}")
    well = median(found["POST to verified variant"]) < TARGET_SECONDS
    print(f"target: median under {TARGET_SECONDS} s: {'met' if well else 'MISSED'}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
