"""What routes ask for."""

from dataclasses import dataclass
from threading import Event
from typing import Annotated, NamedTuple, cast

from fastapi import Depends, Path, Request
from pydantic import BaseModel
from starlette.responses import Response

from draftmill.archive import Archive
from draftmill.problems import ProblemError
from draftmill_service.api.metrics import Metrics
from draftmill_service.keyring import ApiKey, Scope
from draftmill_service.settings import ServiceSettings
from draftmill_service.store import Store
from draftmill_service.usecases import UseCases


@dataclass(frozen=True)
class Services:
    settings: ServiceSettings
    cases: UseCases
    store: Store
    archive: Archive
    metrics: Metrics
    stopping: Event
    """Set when the process shuts down: what has no end of its own ends then."""


class Caller(NamedTuple):
    """Who calls, with a key that has the scope, and what serves them. One dependency: each costs every request."""

    key: ApiKey
    services: Services

    @property
    def cases(self) -> UseCases:
        return self.services.cases

    @property
    def store(self) -> Store:
        return self.services.store

    @property
    def archive(self) -> Archive:
        return self.services.archive


class Requires:
    """Dependency: a caller whose key has the scope; ProblemError("forbidden") otherwise."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def __call__(self, request: Request) -> Caller:
        key = cast("ApiKey", request.scope["draftmill.key"])
        if self._scope not in key.scopes:
            raise ProblemError("forbidden", f"this needs a key with the scope {self._scope}")
        return Caller(key, services(request))


def services(request: Request) -> Services:
    return cast("Services", request.app.state.services)


writer = Requires(Scope.WRITE)
Reader = Annotated[Caller, Depends(Requires(Scope.READ))]
Writer = Annotated[Caller, Depends(writer)]
MetricsReader = Annotated[Caller, Depends(Requires(Scope.METRICS))]
JobId = Annotated[str, Path(description="`j` and 26 digits and letters", max_length=256)]
BatchId = Annotated[str, Path(description="`s` and 26 digits and letters", max_length=256)]


def answer(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A model as it is: FastAPI would take it apart and validate it once more."""
    return Response(model.model_dump_json(by_alias=True), status, headers, media_type="application/json")
