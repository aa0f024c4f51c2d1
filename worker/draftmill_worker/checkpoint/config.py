"""JSON from a checkpoint, read with bounds: such a file is hostile until proved otherwise."""

import json
from typing import Any

from draftmill.problems import Offender, ProblemError

MAX_CONFIG_BYTES = 4 << 20
MAX_INDEX_BYTES = 32 << 20
MAX_DEPTH = 32


def load_json(data: bytes, name: str, max_bytes: int = MAX_CONFIG_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """The value in `data`, UTF-8 JSON of at most `max_bytes` nested at most `max_depth` deep.

    Raises `malformed-config` for anything else, for a key given twice, and for text that is not valid Unicode.
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


def _check_unicode(value: Any, name: str, slug: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _malformed(slug, name, "a string holds half a surrogate pair") from error


def _malformed(slug: str, name: str, message: str) -> ProblemError:
    return ProblemError(slug, f"{name}: {message}", [Offender(where=name, message=message)])
