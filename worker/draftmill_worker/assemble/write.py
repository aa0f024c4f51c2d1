"""Files of a variant: written once, never through a link, with the same bytes on every build."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

FILE_MODE = 0o644
FOLDER_MODE = 0o755


def write_json(path: Path, value: Any) -> None:
    """Sorted keys, two spaces, UTF-8, one newline at the end. NaN and Inf raise ValueError."""
    write_text(path, json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """FileExistsError when `path` exists, be it as a link."""
    with path.open("x", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
        os.fchmod(stream.fileno(), FILE_MODE)


def copy_file(source: Path, destination: Path) -> None:
    """The bytes alone: another inode, no times, no attributes. Folders of `destination` are made."""
    for folder in reversed(destination.parents):
        if not folder.exists():
            folder.mkdir(mode=FOLDER_MODE)
    with source.open("rb") as reader, destination.open("xb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        os.fchmod(writer.fileno(), FILE_MODE)
