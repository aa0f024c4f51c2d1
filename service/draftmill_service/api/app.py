"""The application: services wired together, routes, handlers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import metadata
from threading import Event

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from draftmill.archive import Archive
from draftmill.problems import ProblemError
from draftmill_service.api import artifacts, batches, events, jobs, preflight, problems, receipts, system, validation
from draftmill_service.api.deps import Services
from draftmill_service.api.gate import PAGES, Gate
from draftmill_service.api.metrics import Metrics
from draftmill_service.api.openapi import describe
from draftmill_service.archivist import Archivist
from draftmill_service.doorbell import Doorbell
from draftmill_service.keyring import Keyring
from draftmill_service.ledger import Ledger, LedgerUnavailable
from draftmill_service.reaper import Reaper
from draftmill_service.settings import ServiceSettings
from draftmill_service.store import Store
from draftmill_service.usecases import UseCases
from draftmill_service.web.app import create_web
from draftmill_service.web.site import Site


async def _dashboard(_: Request) -> Response:
    return RedirectResponse(f"{PAGES}/", 303)


async def _unavailable(request: Request, _: Exception) -> Response:
    refusal = ProblemError("ledger-unavailable", "try again; nothing was lost")
    request_id = request.scope.get("draftmill.request_id")
    return problems.answer(refusal.problem, request_id=request_id, headers={"Retry-After": "1"})


def create_app(settings: ServiceSettings) -> FastAPI:
    """The service as an ASGI application. Its lifespan runs the doorbell and the reaper; it starts without Redis."""
    ledger = Ledger.connect(settings.redis_url)
    doorbell = Doorbell(settings.redis_url)
    reaper = Reaper(
        ledger,
        doorbell,
        every=settings.reap_seconds,
        max_attempts=settings.max_attempts,
        ring_seconds=settings.ring_seconds,
    )
    archivist = Archivist(ledger, settings.data_dir, every=settings.reap_seconds)
    metrics = Metrics(reaper.counts, lambda: doorbell.failures)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        doorbell.start()
        loops = [
            asyncio.create_task(reaper.run(), name="reaper"),
            asyncio.create_task(archivist.run(), name="archivist"),
        ]
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()
            for loop in loops:
                with suppress(asyncio.CancelledError):
                    await loop
            await asyncio.to_thread(doorbell.stop)
            await ledger.close()

    app = FastAPI(
        title="Draftmill",
        version=metadata.version("draftmill"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = Services(
        settings,
        UseCases(ledger, doorbell, settings.preflight_seconds, settings.batch_running),
        Store(settings.data_dir),
        Archive.of(settings.data_dir),
        metrics,
        Event(),
    )
    for module in (jobs, batches, events, artifacts, receipts, preflight, system):
        app.include_router(module.router)
    keyring = Keyring(settings.keys_file)
    for path in ("/", PAGES):
        app.add_route(path, _dashboard, include_in_schema=False)
    app.mount(PAGES, create_web(Site.of(app.state.services, keyring)))
    app.add_exception_handler(ProblemError, problems.refuse)
    app.add_exception_handler(LedgerUnavailable, _unavailable)
    app.add_exception_handler(RequestValidationError, validation.invalid)
    app.add_exception_handler(HTTPException, validation.http_error)
    app.add_middleware(
        Gate,
        keyring=keyring,
        max_body_bytes=settings.max_body_bytes,
        observe=metrics.observe,
    )
    describe(app)
    return app
