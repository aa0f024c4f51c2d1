"""The OpenAPI document: FastAPI's, with the security that the gate enforces."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from draftmill_service.api.gate import OPEN

DESCRIPTION = (
    "Quantizes speculative-decoding drafters and proves that an inference engine reads the result as meant.\n\n"
    "Every error is an `application/problem+json` document (RFC 9457) with a stable `type`."
)


def describe(app: FastAPI) -> None:
    """Make `app.openapi()` give the whole document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes)
    document["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key: `dm_<id>_<secret>`."}
    }
    document["security"] = [{"key": []}]
    for path in OPEN:
        for operation in document["paths"][path].values():
            operation["security"] = []
    return document
