"""Commands that other rooms add, and what is said when their dependencies are not installed."""

import importlib.metadata
from importlib.metadata import EntryPoint

import pytest

from draftmill.cli import extensions
from draftmill.cli.exits import ExitCode
from draftmill.cli.main import run


def added(monkeypatch: pytest.MonkeyPatch, value: str, name: str = "up") -> None:
    entry = EntryPoint(name=name, value=value if ":" in value else f"{__name__}:{value}", group=extensions.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == extensions.GROUP else [])


def greet(name: str) -> None:
    """Greet somebody."""
    print(f"hello {name}")


def needs_more() -> None:
    import no_such_module_anywhere  # type: ignore[import-not-found]  # noqa: F401


def is_broken() -> None:
    raise ModuleNotFoundError("moved", name="draftmill_worker.elsewhere")


def test_an_added_command_runs_with_its_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    added(monkeypatch, "greet", "greet")
    assert run(["greet", "world"]) == ExitCode.OK
    assert capsys.readouterr().out == "hello world\n"
    run(["--help"])
    assert "Greet somebody." in capsys.readouterr().out


@pytest.mark.parametrize("value", ["needs_more", "no_such_module_anywhere:up"])
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    added(monkeypatch, value)
    assert run(["up"]) == ExitCode.USAGE
    assert "pip install 'draftmill[service,worker,embedded]'" in capsys.readouterr().err
    assert run(["--help"]) == ExitCode.OK


def test_a_fault_of_our_own_is_not_taken_for_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    added(monkeypatch, "is_broken")
    with pytest.raises(ModuleNotFoundError, match="moved"):
        run(["up"])


def test_up_is_installed() -> None:
    assert "up" in extensions.commands()
