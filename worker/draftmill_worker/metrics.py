"""Figures for Prometheus that workers add up: the supervising processes write them, `metrics_server` shows them.

Counters and histograms only. With PROMETHEUS_MULTIPROC_DIR set, as the launcher does, each process keeps its own in a
file there, and a sum over the files outlives the processes.
"""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from draftmill.jobs import JobSpec
from draftmill.states import Outcome, Stage
from draftmill_worker.stage import StageResult

REGISTRY = CollectorRegistry()
_SECONDS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_LENGTHS = (1.0, 1.02, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0)

STAGE_SECONDS = Histogram(
    "draftmill_stage_seconds", "Time a stage took", ("stage", "outcome"), buckets=_SECONDS, registry=REGISTRY
)
ATTEMPTS = Counter("draftmill_attempts", "Attempts of this worker that ended", ("outcome",), registry=REGISTRY)
BYTES_IN = Counter("draftmill_bytes_in", "Bytes of drafters and targets that were pulled", registry=REGISTRY)
BYTES_OUT = Counter("draftmill_bytes_out", "Bytes of weights in variants that were sealed", registry=REGISTRY)
ACCEPTANCE_LENGTH = Histogram(
    "draftmill_acceptance_length",
    "Acceptance length of measured variants and of their controls",
    ("format", "arm"),
    buckets=_LENGTHS,
    registry=REGISTRY,
)
GATES = Counter("draftmill_gates", "Verdicts of gates", ("format", "verdict"), registry=REGISTRY)
PREFLIGHT_SECONDS = Histogram(
    "draftmill_preflight_seconds", "Time to answer a preflight", buckets=_SECONDS[:6], registry=REGISTRY
)


def stage_ended(stage: Stage, spec: JobSpec, result: StageResult, seconds: float) -> None:
    failed = result.problem is not None
    STAGE_SECONDS.labels(stage.value, (Outcome.FAILED if failed else Outcome.SUCCEEDED).value).observe(seconds)
    if stage is Stage.PULL and not failed:
        BYTES_IN.inc(pulled_bytes(result.value))
    if stage is Stage.SEAL and not failed and not result.value.get("adopted"):
        BYTES_OUT.inc(result.value["summary"]["variant_bytes"])
    if stage is Stage.BENCH:
        # Also of a variant that failed its gate.
        _measured(spec, (result.value.get("summary") or {}).get("acceptance"))


def pulled_bytes(value: dict[str, Any]) -> int:
    """What a pull brought, without what was here already."""
    return sum(int(part.get("bytes_pulled", 0)) for part in (value, value.get("target") or {}))


def _measured(spec: JobSpec, acceptance: dict[str, Any] | None) -> None:
    if acceptance is None:
        return
    ACCEPTANCE_LENGTH.labels(str(spec.format), "variant").observe(acceptance["al"])
    ACCEPTANCE_LENGTH.labels(str(spec.format), "control").observe(acceptance["control_al"])
    GATES.labels(str(spec.format), acceptance["verdict"]).inc()
