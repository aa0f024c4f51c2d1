"""What `import draftmill` offers, and what it must not cost."""

import inspect
import subprocess
import sys
from types import ModuleType
from typing import Any

import draftmill
from draftmill import AsyncClient, Client, DraftmillError


def test_every_exported_name_resolves_and_none_is_missing() -> None:
    values = {name: getattr(draftmill, name) for name in draftmill.__all__}
    assert all(value is not None for value in values.values())
    public = {
        name
        for name, value in vars(draftmill).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public - {"TYPE_CHECKING", "lazy"} <= set(draftmill.__all__)
    assert draftmill.__all__ == sorted(draftmill.__all__, key=lambda name: (not name.isupper(), name))


def test_the_tree_of_errors_is_exported_and_in_its_docstring() -> None:
    tree: set[type[DraftmillError]] = {DraftmillError, *DraftmillError.__subclasses__()}
    listed = [error for error in tree if error.__module__ in ("draftmill.errors", "draftmill.problems")]
    assert len(listed) >= 6
    for error in listed:
        assert error.__name__ in draftmill.__all__
        assert error.__name__ in str(inspect.getdoc(sys.modules["draftmill.errors"]))


def test_every_type_that_the_client_answers_with_is_exported() -> None:
    methods = [method for method in vars(Client).values() if inspect.isfunction(method)]
    answers: list[Any] = [inspect.signature(method).return_annotation for method in methods]
    ours: list[type] = [
        answer for answer in answers if inspect.isclass(answer) and answer.__module__.startswith("draftmill.")
    ]
    assert len(ours) > 8
    assert {answer.__name__ for answer in ours} <= set(draftmill.__all__)


def test_both_clients_offer_the_same_calls() -> None:
    def calls(client: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in vars(client).items()
            if inspect.isfunction(method) and not name.startswith("_")
        }

    blocking, awaiting = calls(Client), calls(AsyncClient)
    awaiting["close"] = awaiting.pop("aclose")
    assert blocking == awaiting


def test_models_come_without_the_http_client() -> None:
    check = "import sys, draftmill.jobs; sys.exit('httpx' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
