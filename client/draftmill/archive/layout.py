"""Names in the archive."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

RECEIPTS = "receipts"
"""Folder of the archive in a data directory."""
CHAINS = "chains"
RECEIPT = "receipt.json"
REQUEST = "request.json"
STDOUT = "stdout.log"
STDERR = "stderr.log"
MANIFEST = "MANIFEST"

WRITER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Names that a writer may have: they are file names too."""
BOOT = re.compile(r"b[0-9a-f]{32}")

_TIME = "%Y%m%dT%H%M%S%fZ"
FOLDER = re.compile(r"(\d{8}T\d{12}Z)-(b[0-9a-f]{32})")


class BootName(NamedTuple):
    """A boot's folder name read: names sort by time."""

    opened_at: datetime
    boot: str


def folder_name(opened_at: datetime, boot: str) -> str:
    return f"{opened_at.astimezone(UTC).strftime(_TIME)}-{boot}"


def read_name(name: str) -> BootName | None:
    """None for what is no boot's folder name."""
    match = FOLDER.fullmatch(name)
    if match is None:
        return None
    try:
        return BootName(datetime.strptime(match[1], _TIME).replace(tzinfo=UTC), match[2])
    except ValueError:  # digits that are no time
        return None


def chain_path(root: Path, writer: str) -> Path:
    """ValueError for a name that no writer may have."""
    if not WRITER.fullmatch(writer):
        raise ValueError(f"not a writer's name: {writer!r}")
    return root / CHAINS / f"{writer}.jsonl"
