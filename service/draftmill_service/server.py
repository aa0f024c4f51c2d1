"""The API's process: uvicorn around the application."""

import signal
from types import FrameType

import uvicorn

from draftmill_service.api.app import create_app
from draftmill_service.logs import log_to_stderr
from draftmill_service.settings import ServiceSettings

GRACE_SECONDS = 3
"""How long open requests, event streams among them, may go on after SIGTERM."""


def _stop(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)


def serve(settings: ServiceSettings) -> None:
    """Serve until a signal says stop."""
    log_to_stderr()
    # uvicorn raises the signal once more when it has shut down; a stop that was asked for is no failure.
    signal.signal(signal.SIGTERM, _stop)
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=GRACE_SECONDS,
        # A peer that sends half a request would hold its connection for ever.
        timeout_keep_alive=30,
    )
