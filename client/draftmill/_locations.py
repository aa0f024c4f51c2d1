"""Where Pydantic says that a fault is, as fields of the document."""

import re

# For a value of several kinds, such as a format or `auto`, the kind that was tried stands in the location too.
_KIND = re.compile(r"(str-enum|literal)\[")


def is_field(part: str | int) -> bool:
    """Whether a part of a location is a key or an index."""
    return isinstance(part, int) or _KIND.match(part) is None
