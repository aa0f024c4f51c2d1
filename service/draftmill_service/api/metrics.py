"""Figures for Prometheus."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from draftmill_service.ledger import Gauges

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

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def exposition(self, gauges: Gauges) -> bytes:
        """Text format 0.0.4."""
        ledger = CollectorRegistry()
        ledger.register(_Ledger(gauges))
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
