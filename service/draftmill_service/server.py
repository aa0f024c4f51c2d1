"""The API's process: uvicorn around the application."""

import gc
import signal
from contextlib import suppress
from socket import socket
from types import FrameType

import uvicorn

from draftmill_service.api.app import create_app
from draftmill_service.logs import log_to_stderr
from draftmill_service.settings import ServiceSettings

GRACE_SECONDS = 3
"""How long open requests may go on after SIGTERM."""


class Server(uvicorn.Server):
    """Tells the application that it stops before it waits for open requests."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._services = (app := create_app(settings)).state.services
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=GRACE_SECONDS,
            timeout_keep_alive=30,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        # What was loaded stays: looking through it for garbage again and again costs a request a sixth of its time.
        gc.collect()
        gc.freeze()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._services.stopping.set()
        await super().shutdown(sockets)


def _stop(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)


def serve(settings: ServiceSettings) -> None:
    """Serve until a signal says stop. SystemExit, not 0, when it cannot start."""
    log_to_stderr()
    # uvicorn raises the signal once more when it has shut down; a stop that was asked for is no failure.
    signal.signal(signal.SIGTERM, _stop)
    server = Server(settings)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        raise SystemExit(1)
