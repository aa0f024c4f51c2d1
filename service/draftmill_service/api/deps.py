"""What routes ask for."""

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Path, Request
from pydantic import BaseModel
from starlette.responses import Response

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
    metrics: Metrics


class Requires:
    """Dependency: the caller's key, when it has the scope; ProblemError("forbidden") otherwise."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def __call__(self, request: Request) -> ApiKey:
        key = cast("ApiKey", request.scope["draftmill.key"])
        if self._scope not in key.scopes:
            raise ProblemError("forbidden", f"this needs a key with the scope {self._scope}")
        return key


async def services(request: Request) -> Services:
    return cast("Services", request.app.state.services)


Reader = Annotated[ApiKey, Depends(Requires(Scope.READ))]
Writer = Annotated[ApiKey, Depends(Requires(Scope.WRITE))]
MetricsReader = Annotated[ApiKey, Depends(Requires(Scope.METRICS))]
Wired = Annotated[Services, Depends(services)]
JobId = Annotated[str, Path(description="`j` and 26 digits and letters", max_length=256)]


def answer(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A model as it is: FastAPI would take it apart and validate it once more."""
    return Response(model.model_dump_json(by_alias=True), status, headers, media_type="application/json")
