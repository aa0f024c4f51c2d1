"""The Idempotency-Key header."""

from typing import Annotated, Any, Final

from fastapi import Header, Request
from fastapi.exceptions import RequestValidationError
from pydantic import StringConstraints, TypeAdapter, ValidationError

NAME: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotency-Replayed"
"""Header of an answer to a key that was used before."""
_PATTERN: Final = r"^[\x21-\x7e]+$"
_SUBMITTED = "The same key with the same spec answers the same {} for a day. Keys are per API key."
_KEY = TypeAdapter(Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=_PATTERN)])


def _header(description: str) -> Any:
    return Header(alias=NAME, description=description, min_length=1, max_length=255, pattern=_PATTERN)


BatchKey = Annotated[str | None, _header(_SUBMITTED.format("batch"))]
RetryKey = Annotated[
    str | None, _header("The same key retries the job once, however often it is sent in a day. Keys are per API key.")
]


def job_key(request: Request) -> str | None:
    """What a parameter of the route would be: a route without parameters costs a third less."""
    key = request.headers.get(NAME)
    if key is None:
        return None
    try:
        return _KEY.validate_python(key)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise RequestValidationError([{**each, "loc": ("header", NAME)} for each in faults]) from error


def documented_key() -> dict[str, Any]:
    """`job_key` in a route's `openapi_extra`."""
    schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": _PATTERN, "title": NAME}
    description = _SUBMITTED.format("job")
    return {
        "parameters": [{"name": NAME, "in": "header", "required": False, "description": description, "schema": schema}]
    }
