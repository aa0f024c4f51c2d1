"""Python files that a checkpoint's `auto_map` needs, found before they are all there.

A module's own imports are known only once its text is: files are asked for one after another from a tree that may be
a folder or a repository's listing. They are parsed as text, never imported.
"""

import ast
import warnings
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Protocol

from draftmill_worker.checkpoint.auto_map import auto_map_files
from draftmill_worker.checkpoint.config import load_object
from draftmill_worker.checkpoint.findings import Findings

MAX_MODULE_BYTES = 2 << 20
MAX_MODULES = 256


class Tree(Protocol):
    """Files by path relative to the checkpoint's root, POSIX style."""

    def has(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def read(self, path: str) -> bytes: ...


def needed_modules(tree: Tree, configs: Mapping[str, bytes], repo: str | None) -> tuple[str, ...]:
    """Paths of the modules that the `auto_map`s in `configs` (JSON files by name) need, sorted.

    A reference into another repository than `repo` is left out. Raises `unsafe-path` for a reference that leaves the
    root, `malformed-config` for what is no reference or no Python, `incomplete-checkpoint` for a missing file.
    """
    closure = _Closure(tree, findings := Findings())
    for name, data in configs.items():
        for file in _named(load_object(data, name), name, repo):
            closure.require(file.removesuffix(".py").split("/"), f"{name}: auto_map")
    closure.run()
    findings.raise_any()
    return tuple(sorted(closure.files))


def _named(config: dict[str, Any], name: str, repo: str | None) -> list[str]:
    named = auto_map_files(config, name)
    # Saving what was loaded from the Hub prefixes its own classes with the repository's name.
    own = [entry.rpartition("--")[2] for entry in named.foreign if entry.rpartition("--")[0] == repo]
    return [*named.files, *(path.rpartition(".")[0].replace(".", "/") + ".py" for path in own)]


class _Closure:
    """Modules reached so far and those still to be read."""

    def __init__(self, tree: Tree, findings: Findings) -> None:
        self.files: set[str] = set()
        self._tree = tree
        self._findings = findings
        self._pending: list[tuple[str, str]] = []

    def run(self) -> None:
        while self._pending and not self._findings:
            file, where = self._pending.pop()
            if file in self.files:
                continue
            if len(self.files) >= MAX_MODULES:
                self._findings.add("malformed-config", where, f"auto_map needs more than {MAX_MODULES} modules")
                return
            self.files.add(file)
            self._enter(file)

    def _enter(self, file: str) -> None:
        for parent in PurePosixPath(file).parents:
            init = (parent / "__init__.py").as_posix()
            if parent != PurePosixPath() and self._tree.has(init):
                self._pending.append((init, file))
        package = list(PurePosixPath(file).parent.parts)
        for node in self._imports(file):
            self._follow(file, package, node)

    def _imports(self, file: str) -> list[ast.ImportFrom]:
        if self._tree.size(file) > MAX_MODULE_BYTES:
            self._findings.add("malformed-config", file, f"a module has at most {MAX_MODULE_BYTES} bytes")
            return []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an odd escape in their string is no business of ours
                tree = ast.parse(self._tree.read(file), filename=file)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self._findings.add("malformed-config", file, f"not Python that can be parsed: {type(error).__name__}")
            return []
        return [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]

    def _follow(self, file: str, package: list[str], node: ast.ImportFrom) -> None:
        """`from .x import y`, where y may be a name in x or a module below it."""
        where = f"{file}: line {node.lineno}"
        up = node.level - 1
        if up > len(package):
            self._findings.add("unsafe-path", where, "a relative import leaves the checkpoint's folder")
            return
        parts = package[: len(package) - up] + (node.module.split(".") if node.module else [])
        below = [self._find([*parts, alias.name]) for alias in node.names]
        self._pending += [(found, where) for found in below if found is not None]
        if None in below:  # a name that is no module is defined in x itself
            self.require(parts, where)
        elif (found := self._find(parts)) is not None:
            self._pending.append((found, where))

    def require(self, parts: list[str], where: str) -> None:
        found = self._find(parts)
        if found is not None:
            self._pending.append((found, where))
        else:
            message = f"{'/'.join(parts) or '__init__'}.py is not in the checkpoint"
            self._findings.add("incomplete-checkpoint", where, message)

    def _find(self, parts: list[str]) -> str | None:
        package = "/".join([*parts, "__init__.py"])
        candidates = ["/".join(parts) + ".py", package] if parts else [package]
        return next((name for name in candidates if self._tree.has(name)), None)
