"""`auto_map`: the Python files a checkpoint names for its classes. They are copied, never imported."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from draftmill_worker.checkpoint.findings import Findings

_CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
_MAX_ENTRIES = 64


class AutoMap(NamedTuple):
    files: tuple[str, ...]
    """Paths relative to the checkpoint folder, POSIX, sorted: `modeling_x.py`, `package/modeling_x.py`."""
    foreign: tuple[str, ...]
    """Entries that name code of another repository, `org/repo--module.Class`. Nothing fetches them."""


def auto_map_files(config: Mapping[str, Any], name: str) -> AutoMap:
    """The files that `config`, parsed from the file `name`, names in its `auto_map`.

    A value is `module.Class`, or a list of such and null (slow and fast tokenizer). Raises `malformed-config` for other
    types and `unsafe-path` for what is no dotted path, with every bad entry.
    """
    auto_map = config.get("auto_map")
    if auto_map is None:
        return AutoMap((), ())
    findings = Findings()
    files, foreign = set(), set()
    for key, value in _entries(auto_map, name, findings):
        where = f"{name}: auto_map.{key}"
        repository, separator, path = value.rpartition("--")
        if not _CLASS_PATH.fullmatch(path):
            findings.add("unsafe-path", where, "is no module.Class inside the checkpoint's folder", value[:256])
        elif separator:
            foreign.add(f"{repository}--{path}")
        else:
            files.add(path.rpartition(".")[0].replace(".", "/") + ".py")
    findings.raise_any()
    return AutoMap(tuple(sorted(files)), tuple(sorted(foreign)))


def _entries(auto_map: Any, name: str, findings: Findings) -> Iterator[tuple[str, str]]:
    if not isinstance(auto_map, dict) or len(auto_map) > _MAX_ENTRIES:
        findings.add("malformed-config", f"{name}: auto_map", f"must be an object of at most {_MAX_ENTRIES} entries")
        return
    for key, value in auto_map.items():
        choices = value if isinstance(value, list) else [value]
        for choice in choices[:_MAX_ENTRIES]:
            if isinstance(choice, str):
                yield key, choice
            elif choice is not None or not isinstance(value, list):
                message = "must be a string, or a list of strings and null"
                findings.add("malformed-config", f"{name}: auto_map.{key}", message)
