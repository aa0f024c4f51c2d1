"""Identity of the code that measures: part of what makes an earlier measurement comparable."""

import functools
import hashlib
from pathlib import Path


@functools.cache
def bench_build() -> str:
    """SHA-256 over this room's sources, by relative path."""
    room = Path(__file__).parent
    found = hashlib.sha256()
    for path in sorted(room.rglob("*.py")):
        found.update(str(path.relative_to(room)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()
