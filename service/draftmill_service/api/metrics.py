"""Figures for Prometheus."""

import functools
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from draftmill_service.ledger import Gauges
from draftmill_service.ledger.measures import Measures

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """`reaped` and `unheard` are read at each scrape."""

    def __init__(self, reaped: Mapping[str, int], unheard: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "draftmill_http_requests", "Requests answered", ("method", "route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "draftmill_http_request_seconds", "Time to answer", ("route",), buckets=_BUCKETS, registry=self._registry
        )
        self._registry.register(_Process(reaped, unheard))
        # Looking a child up by its labels costs more than counting.
        self._count = functools.cache(self._requests.labels)
        self._time = functools.cache(self._seconds.labels)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        self._count(method, route, status).inc()
        self._time(route).observe(seconds)

    def exposition(self, gauges: Gauges, measures: Measures) -> bytes:
        """Text format 0.0.4."""
        ledger = CollectorRegistry()
        ledger.register(_Ledger(gauges))
        ledger.register(_Work(measures))
        return generate_latest(self._registry) + generate_latest(ledger)


class _Process(Collector):
    def __init__(self, reaped: Mapping[str, int], unheard: Callable[[], int]) -> None:
        self._reaped = reaped
        self._unheard = unheard

    def collect(self) -> Iterable[Metric]:
        reaped = CounterMetricFamily("draftmill_reaped", "What the reaper of this process did", labels=["became"])
        for became in ("queued", "failed", "canceled", "expired", "rung"):
            reaped.add_metric([became], self._reaped.get(became, 0))
        yield reaped
        unheard = CounterMetricFamily("draftmill_doorbell_failures", "Messages that could not be sent")
        unheard.add_metric([], self._unheard())
        yield unheard


class _Ledger(Collector):
    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        jobs = GaugeMetricFamily("draftmill_jobs", "Jobs by state", labels=["state"])
        for state, count in self._gauges.states.items():
            jobs.add_metric([state], count)
        yield jobs
        yield GaugeMetricFamily(
            "draftmill_oldest_queued_seconds",
            "Age of the oldest queued job; grows when no worker takes jobs",
            value=self._gauges.oldest_queued_seconds,
        )
        yield GaugeMetricFamily(
            "draftmill_doorbells", "Messages that no worker has taken", value=self._gauges.doorbells
        )


class _Work(Collector):
    def __init__(self, measures: Measures) -> None:
        self._measures = measures

    def collect(self) -> Iterable[Metric]:
        jobs = GaugeMetricFamily("draftmill_queue_jobs", "Queued jobs whose turn has come", labels=["queue"])
        bells = GaugeMetricFamily("draftmill_queue_doorbells", "Messages that no worker has taken", labels=["queue"])
        ages = GaugeMetricFamily(
            "draftmill_queue_oldest_seconds",
            "Age of the oldest of them; grows when no worker takes it",
            labels=["queue"],
        )
        for name, queue in self._measures.queues.items():
            jobs.add_metric([name], queue.jobs)
            bells.add_metric([name], queue.doorbells)
            ages.add_metric([name], queue.oldest_seconds)
        yield from (jobs, bells, ages)
        running = GaugeMetricFamily("draftmill_running", "Jobs that a worker holds, by running stage", labels=["stage"])
        for stage, count in self._measures.running.items():
            running.add_metric([stage], count)
        running.add_metric(["between"], self._measures.between)
        yield running
        yield GaugeMetricFamily(
            "draftmill_oldest_lease_seconds",
            "Since the claim of the attempt that runs longest",
            value=self._measures.oldest_lease_seconds,
        )
        remaining = GaugeMetricFamily(
            "draftmill_least_lease_remaining_seconds",
            "What is left of the lease that ends first; below 0 its worker is lost and nobody reaps",
        )
        if self._measures.least_remaining_seconds is not None:
            remaining.add_metric([], self._measures.least_remaining_seconds)
        yield remaining
