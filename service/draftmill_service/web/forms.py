"""Forms as browsers send them: application/x-www-form-urlencoded."""

from urllib.parse import parse_qsl

from pydantic import BeforeValidator
from starlette.requests import Request

from draftmill.problems import ProblemError

FORM = "application/x-www-form-urlencoded"
MAX_FIELDS = 500
or_none = BeforeValidator(lambda value: None if value == "" else value)
"""Of a query that a form makes: it sends every field, empty ones too."""


class Form:
    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """The last value without spaces around it; empty when there is none."""
        return next((value.strip() for key, value in reversed(self._fields) if key == name), "")

    def checked(self, name: str) -> bool:
        return self.text(name) != ""

    def lines(self, name: str) -> list[str]:
        """Of a text area, those that are not empty."""
        return [line.strip() for line in self.text(name).splitlines() if line.strip()]


async def read_form(request: Request) -> Form:
    """ProblemError("invalid-request") for a body that is no form."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise ProblemError("invalid-request", f"send {FORM}")
    try:
        body = (await request.body()).decode()
        return Form(parse_qsl(body, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"))
    except ValueError as error:
        raise ProblemError("invalid-request", "the form cannot be read") from error
