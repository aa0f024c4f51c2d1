"""The distinct warnings of an engine's log, as two equal boots both give them."""

import re
from collections.abc import Iterator

from draftmill_worker.receipts.normalise import Roots, message
from draftmill_worker.receipts.redact import Redactor

MAX_WARNINGS = 200
MAX_CHARS = 500

# vLLM's format: `(EngineCore pid=123) WARNING 11-30 17:00:00 [cpu.py:107] message`.
_ENGINE = re.compile(r"(?:WARNING|ERROR|CRITICAL) +(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? (\[[^\]]*\] .*)")
# Python's: `/path/file.py:12: UserWarning: message`.
_PYTHON = re.compile(r":\d+: ([A-Za-z]*Warning: .*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def warnings(log: bytes, roots: Roots, redactor: Redactor) -> tuple[str, ...]:
    """Sorted, since processes of an engine write in any order; at most MAX_WARNINGS, each cut at MAX_CHARS."""
    found = {message(redactor.text(line), roots)[:MAX_CHARS] for line in _lines(log)}
    return tuple(sorted(found)[:MAX_WARNINGS])


def _lines(log: bytes) -> Iterator[str]:
    for line in _COLOUR.sub("", log.decode(errors="replace")).splitlines():
        if (match := _ENGINE.search(line) or _PYTHON.search(line)) is not None:
            yield match[1].strip()
