"""Settings from the environment, with what is wrong said by variable."""

from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError

from draftmill.errors import SettingsError

S = TypeVar("S")
PREFIX = "DRAFTMILL_"


def read_settings(read: Callable[[], S]) -> S:
    """What `read` makes of the environment. SettingsError, one line with every variable that is wrong, without values:
    a Redis URL may hold a password."""
    try:
        return read()
    except ValidationError as error:
        faults = [_fault(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors(include_url=False)]
        raise SettingsError("; ".join(faults)) from None


def _fault(field: str, message: str) -> str:
    return f"{PREFIX}{field.upper()}: {message.removeprefix('Value error, ')}"
