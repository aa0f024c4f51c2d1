"""The OpenAPI document: FastAPI's, with the security that the gate enforces."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from draftmill.batches import BatchSpec
from draftmill.jobs import JobSpec
from draftmill_service.api.gate import OPEN
from draftmill_service.api.preflight import PreflightRequest

BODIES = (JobSpec, BatchSpec, PreflightRequest)
"""Models of request bodies, which FastAPI does not see."""

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
    schemas = document["components"]["schemas"]
    for model in BODIES:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        for name, part in {**schema.pop("$defs", {}), model.__name__: schema}.items():
            schemas.setdefault(name, part)
    for schema in schemas.values():
        _close_keys(schema)
    for item in document["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
    document["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key: `dm_<id>_<secret>`."}
    }
    document["security"] = [{"key": []}]
    for path in OPEN:
        for operation in document["paths"][path].values():
            operation["security"] = []
    return document


def _close_keys(schema: dict[str, Any]) -> None:
    """A mapping whose keys have a pattern has no others; Pydantic refuses them and does not say so."""
    for field in schema.get("properties", {}).values():
        if "patternProperties" in field:
            field["additionalProperties"] = False


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is there or not; it is never null."""
    branches = [branch for branch in schema.get("anyOf", ()) if branch != {"type": "null"}]
    if len(branches) != 1:
        return schema
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **branches[0]}
