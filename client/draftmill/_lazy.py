"""A package's public names, imported from its modules when they are first asked for (PEP 562)."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """`__getattr__` of `package`. `places`: the names of each of its modules, separated by spaces."""
    module_of = {name: module for module, names in places.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    return load
