"""What the pages are made from."""

from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Protocol, Self, cast

from starlette.requests import Request

from draftmill.archive import Archive
from draftmill_service.keyring import Keyring
from draftmill_service.settings import ServiceSettings
from draftmill_service.store import Store
from draftmill_service.usecases import UseCases
from draftmill_service.web.sessions import Sessions
from draftmill_service.web.tickets import Tickets


class Services(Protocol):
    """What the service has made; the API's `Services` is one."""

    @property
    def settings(self) -> ServiceSettings: ...
    @property
    def cases(self) -> UseCases: ...
    @property
    def store(self) -> Store: ...
    @property
    def archive(self) -> Archive: ...
    @property
    def stopping(self) -> Event: ...


@dataclass(frozen=True)
class Site:
    data_dir: Path
    cases: UseCases
    store: Store
    archive: Archive
    keyring: Keyring
    sessions: Sessions
    tickets: Tickets
    stopping: Event
    """Set when the process shuts down: what has no end of its own ends then."""
    keepalive_seconds: float

    @classmethod
    def of(cls, services: Services, keyring: Keyring) -> Self:
        data_dir = services.settings.data_dir
        return cls(
            data_dir,
            services.cases,
            services.store,
            services.archive,
            keyring,
            Sessions(data_dir),
            Tickets(data_dir),
            services.stopping,
            services.settings.keepalive_seconds,
        )


def site(request: Request) -> Site:
    return cast("Site", request.app.state.site)
