"""Logs: one JSON object a line on stderr, with tokens and passwords struck out."""

import json
import logging
import re
import sys
from datetime import UTC, datetime

_SECRETS = re.compile(
    r"dm_[0-9a-f]{12}_[0-9a-f]+|hf_[A-Za-z0-9]{8,}|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)|(?i:(?<=bearer\s))[^\s\"']+"
)
_ENCODER = json.JSONEncoder(default=str, ensure_ascii=False)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


# What every secret has in it: looking for these costs a tenth of the search.
_MARKS = ("dm_", "hf_", "://", "bearer")


def redact(text: str) -> str:
    lowered = text.lower()
    return _SECRETS.sub("***", text) if any(mark in lowered for mark in _MARKS) else text


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return redact(_ENCODER.encode(line))


def log_to_stderr(level: int = logging.INFO) -> None:
    # What no line says need not be found out for each.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
