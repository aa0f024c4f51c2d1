"""`python -m draftmill_worker.metrics_server`: what this worker's processes have added up, at /metrics.

A process of its own: the launcher must have no threads, and the others come and go.
"""

import threading

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector

from draftmill_worker.log import log_to_stderr
from draftmill_worker.settings import WorkerSettings


def main() -> None:
    log_to_stderr()
    settings = WorkerSettings()
    if settings.metrics_port is None:
        raise SystemExit("DRAFTMILL_METRICS_PORT is not set")
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    start_http_server(settings.metrics_port, settings.metrics_host, registry)
    threading.Event().wait()


if __name__ == "__main__":
    main()
