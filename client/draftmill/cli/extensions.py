"""Commands that other rooms add, by the entry-point group `draftmill.commands`: a name and a function for Typer."""

import functools
from collections.abc import Callable
from importlib import metadata
from typing import Any

from draftmill.errors import DraftmillError

GROUP = "draftmill.commands"
_EXTRAS = {"up": "service,worker,embedded", "quantize": "worker", "canary": "worker,bench"}


class MissingExtraError(DraftmillError):
    """A command's dependencies are not installed."""


def _explain(name: str, error: ModuleNotFoundError) -> MissingExtraError:
    extra = _EXTRAS.get(name)
    how = f"pip install 'draftmill[{extra}]'" if extra else f"install the package {error.name}"
    return MissingExtraError(f"`draftmill {name}` needs more than the client: {how}  (there is no module {error.name})")


def _is_ours(error: ModuleNotFoundError) -> bool:
    return (error.name or "").partition(".")[0] in ("draftmill", "draftmill_service", "draftmill_worker")


def _guarded(name: str, command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with a missing dependency explained, wherever in it the import is."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except ModuleNotFoundError as error:
            if _is_ours(error):
                raise
            raise _explain(name, error) from error

    return run


def _unavailable(error: MissingExtraError) -> Callable[..., Any]:
    def run() -> None:
        raise error

    run.__doc__ = str(error)
    return run


def names() -> set[str]:
    return {entry.name for entry in metadata.entry_points(group=GROUP)}


def commands(only: str | None = None) -> dict[str, Callable[..., Any]]:
    """Every added command, or the named one; one whose dependencies are missing says so when it is run."""
    found = {}
    for entry in metadata.entry_points(group=GROUP):
        if only not in (None, entry.name):
            continue
        try:
            found[entry.name] = _guarded(entry.name, entry.load())
        except ModuleNotFoundError as error:
            if _is_ours(error):
                raise
            found[entry.name] = _unavailable(_explain(entry.name, error))
    return found
