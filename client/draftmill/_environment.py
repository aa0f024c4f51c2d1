"""Settings from the environment, with what is wrong said by variable."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
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


def secret(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The variable, else what is in the file that `<name>_FILE` names; blanks around it are dropped, None for none.

    SettingsError, which does not repeat what was read, for a file that cannot be.
    """
    if value := environ.get(name, "").strip():
        return value
    path = environ.get(f"{name}_FILE")
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"{name}_FILE: {path} cannot be read: {why}") from None


def _fault(field: str, message: str) -> str:
    return f"{PREFIX}{field.upper()}: {message.removeprefix('Value error, ')}"
