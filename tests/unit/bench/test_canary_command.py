"""`draftmill canary` where there is nothing to measure with."""

from pathlib import Path

import pytest

from draftmill.cli.exits import ExitCode
from draftmill.cli.main import run
from draftmill_worker.bench import canary_command


def test_an_installation_without_the_pair_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A wheel holds no models."""
    monkeypatch.setattr(canary_command, "PAIRS", (tmp_path / "pair",))
    assert run(["canary", "--family", "eagle3"]) == ExitCode.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert "part of the repository" in said.err
    assert str(tmp_path / "pair") in said.err


def test_what_is_not_in_the_table_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["canary", "--family", "medusa", "--format", "fp3"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "--family" in said
    assert "--format" in said
