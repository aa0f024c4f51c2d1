"""Pins: names of items that gc leaves alone. A file beside the keys: an operator's, and not Redis' to lose."""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter

from draftmill._model import Model
from draftmill.jobs import Instant

FILE = "pins.json"


class Pin(Model):
    name: str
    note: str = ""
    pinned_at: Instant


_PINS = TypeAdapter(tuple[Pin, ...])


class Pins:
    def __init__(self, data: Path) -> None:
        self._path = data / FILE

    def list(self) -> tuple[Pin, ...]:
        try:
            return _PINS.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return ()

    def names(self) -> frozenset[str]:
        return frozenset(pin.name for pin in self.list())

    def add(self, name: str, note: str = "") -> Pin:
        """Pinning again changes the note."""
        pin = Pin(name=name, note=note, pinned_at=datetime.now(UTC))
        with self._locked():
            self._write([*(other for other in self.list() if other.name != name), pin])
        return pin

    def remove(self, name: str) -> None:
        """KeyError when it is not pinned."""
        with self._locked():
            pins = self.list()
            if name not in {pin.name for pin in pins}:
                raise KeyError(name)
            self._write([pin for pin in pins if pin.name != name])

    def _write(self, pins: Iterable[Pin]) -> None:
        write_json(self._path, _PINS.dump_python(tuple(sorted(pins, key=lambda pin: pin.name)), mode="json"))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def write_json(path: Path, value: object) -> None:
    """Whole or not at all, and on disk when this returns. One writer at a time: a crash's leavings are overwritten."""
    beside = path.with_name(f".{path.name}.part")
    with beside.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
