"""Logging as JSON lines."""

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _install(handler: logging.Handler, level: int) -> None:
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=level, force=True)


def log_to_stderr(level: int = logging.INFO) -> None:
    _install(logging.StreamHandler(sys.stderr), level)


def log_to_file(path: Path, level: int = logging.INFO) -> None:
    _install(logging.FileHandler(path, encoding="utf-8"), level)
