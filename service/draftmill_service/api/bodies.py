"""Request bodies: read as JSON by the model itself, strictly, after the caller's key was checked."""

import json
from collections import Counter
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)

JSON = "application/json"


async def read_body(request: Request, model: type[M]) -> M:
    """The body as `model`. Strict, so that 1 is no true and 0 no date; RequestValidationError otherwise."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        wrong = {"type": "content_type", "loc": ("header", "Content-Type"), "msg": f"send {JSON}"}
        raise RequestValidationError([wrong])
    body = await request.body()
    try:
        read = model.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise RequestValidationError(
            [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]
        ) from error
    # Pydantic keeps the last of equal keys; which one the caller meant is not for us to guess.
    _UNIQUE.decode(body.decode())
    return read


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = sorted(name for name, count in counts.items() if count > 1)
        wrong = {
            "type": "duplicate_key",
            "loc": ("body",),
            "msg": f"keys given twice in one object: {', '.join(twice)}",
        }
        raise RequestValidationError([wrong])
    return unique


_UNIQUE = json.JSONDecoder(object_pairs_hook=_unique)


def documented_body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route with this body; its schema comes in by `openapi.describe`."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}
