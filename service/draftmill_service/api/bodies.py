"""Request bodies: read as JSON by the model itself, strictly, after the caller's key was checked."""

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
    try:
        return model.model_validate_json(await request.body(), strict=True)
    except ValidationError as error:
        raise RequestValidationError(
            [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]
        ) from error


def documented_body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route with this body; its schema comes in by `openapi.describe`."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}
