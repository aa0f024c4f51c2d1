"""The API's process: uvicorn around the application."""

import uvicorn

from draftmill_service.api.app import create_app
from draftmill_service.logs import log_to_stderr
from draftmill_service.settings import ServiceSettings

GRACE_SECONDS = 3
"""How long open requests, event streams among them, may go on after SIGTERM."""


def serve(settings: ServiceSettings) -> None:
    """Serve until a signal says stop."""
    log_to_stderr()
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
