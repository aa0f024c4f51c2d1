"""JSON from a checkpoint, read with bounds: such a file is hostile until proved otherwise."""

import json
import math
from collections.abc import Iterator
from typing import Any

from draftmill.problems import Offender, ProblemError

MAX_CONFIG_BYTES = 4 << 20
MAX_INDEX_BYTES = 32 << 20
MAX_DEPTH = 32


def load_json(data: bytes, name: str, max_bytes: int = MAX_CONFIG_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """The value in `data`, UTF-8 JSON of at most `max_bytes` nested at most `max_depth` deep.

    Raises `malformed-config` for anything else, for a key given twice, for text that is not valid Unicode, and for
    numbers that are not finite: neither NaN nor 1e400 is JSON that other readers take.
    """
    return decode(data, name, "malformed-config", max_bytes, max_depth)


def load_object(data: bytes, name: str, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Like `load_json`, and the value must be an object."""
    value = load_json(data, name, max_bytes)
    if not isinstance(value, dict):
        raise _malformed("malformed-config", name, "the file does not hold a JSON object")
    return value


def decode(data: bytes, name: str, slug: str, max_bytes: int, max_depth: int) -> Any:
    """`load_json` with the problem's slug as a parameter, for the JSON inside other files."""
    if len(data) > max_bytes:
        raise _malformed(slug, name, f"{len(data)} bytes of JSON; at most {max_bytes} are read")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _malformed(slug, name, f"not valid JSON: {error}") from error
    _check_depth(value, name, slug, max_depth)
    _check_finite(value, name, slug)
    # Only an escape can bring in half a surrogate pair: the bytes themselves were decoded as UTF-8.
    if b"\\u" in data:
        _check_unicode(value, name, slug)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} is given twice")
    return value


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _check_depth(value: Any, name: str, slug: str, max_depth: int) -> None:
    level = [value]
    for _ in range(max_depth + 1):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise _malformed(slug, name, f"nested deeper than {max_depth} levels")


def _check_finite(value: Any, name: str, slug: str) -> None:
    try:
        json.dumps(value, allow_nan=False)  # at C speed; the search for the place is for files that have one
    except ValueError as error:
        place, number = next(_not_finite(value, ""))
        message = f"{place or 'the value'} is not a finite number"
        offender = Offender(where=f"{name}: {place}" if place else name, message="is not finite", value=str(number))
        raise ProblemError(slug, f"{name}: {message}", [offender]) from error


def _not_finite(value: Any, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield place, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _not_finite(child, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _not_finite(child, f"{place}[{index}]")


def _check_unicode(value: Any, name: str, slug: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _malformed(slug, name, "a string holds half a surrogate pair") from error


def _malformed(slug: str, name: str, message: str) -> ProblemError:
    return ProblemError(slug, f"{name}: {message}", [Offender(where=name, message=message)])
