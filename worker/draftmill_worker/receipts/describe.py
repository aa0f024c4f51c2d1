"""Any configuration object as JSON. Runs inside the engine's process: it imports nothing of the engine."""

import dataclasses
import enum
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

MAX_DEPTH = 12


def describe(value: Any, depth: int = 0) -> Any:
    """Dataclasses by their fields; enums by name; functions and classes by their path; other objects by their class
    and those attributes that are plain values. Deeper than MAX_DEPTH only the class is named."""
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, enum.Enum):
        return value.name
    if depth >= MAX_DEPTH:
        return f"<{type(value).__qualname__}>"
    return _composed(value, depth + 1)


def _composed(value: Any, depth: int) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: describe(getattr(value, field.name, None), depth) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): describe(item, depth) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item, depth) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((describe(item, depth) for item in value), key=str)
    return _named(value, depth)


def _named(value: Any, depth: int) -> Any:
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, PurePath) or type(value).__module__.partition(".")[0] == "torch":
        # dtype, device, Size: they say what they are.
        return str(value)
    plain = {name: item for name, item in getattr(value, "__dict__", {}).items() if _plain(item)}
    return {"class": type(value).__qualname__, **{name: describe(item, depth) for name, item in plain.items()}}


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
