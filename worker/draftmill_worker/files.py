"""Durable and tidy writes: whole files or none, and folders that can be removed whatever their modes."""

import os
import shutil
import stat
from pathlib import Path


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes) -> None:
    """Write beside `path`, fsync, rename: readers and crashes see the old file or the whole new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync(path.parent)


def sync_tree(folder: Path) -> None:
    """fsync every file and folder below `folder`, and itself."""
    for root, _, files in os.walk(folder):
        for name in files:
            sync(Path(root, name))
        sync(Path(root))


def remove_tree(folder: Path) -> None:
    """Remove a folder, read-only subfolders too. One that is not there is no error."""
    if not folder.exists():
        return
    for root, _, _ in os.walk(folder):
        path = Path(root)
        path.chmod(path.stat().st_mode | stat.S_IRWXU)
    shutil.rmtree(folder)
