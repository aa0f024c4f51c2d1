"""`draftmill-service` as an operator types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftmill_service.cli import app
from draftmill_service.keyring import Keyring, Scope


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTMILL_DATA_DIR", str(tmp_path))
    return tmp_path


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.output.strip()


def test_keys_are_made_listed_and_revoked(data_dir: Path) -> None:
    token = run("keys", "create", "nightly", "--scope", "read", "--scope", "write")
    keyring = Keyring(data_dir / "keys.json")
    key = keyring.authenticate(token)
    assert key is not None
    assert (key.name, set(key.scopes)) == ("nightly", {Scope.READ, Scope.WRITE})
    assert token.rpartition("_")[2] not in run("keys", "list")
    (listed,) = json.loads(run("keys", "list", "--json"))
    assert listed["id"] == key.id
    assert "sha256" not in listed
    run("keys", "revoke", key.id)
    assert keyring.authenticate(token) is None
    assert "revoked" in run("keys", "list")


def test_a_key_reads_unless_asked(data_dir: Path) -> None:
    made = json.loads(run("keys", "create", "reader", "--json"))
    key = Keyring(data_dir / "keys.json").authenticate(made["token"])
    assert key is not None
    assert key.scopes == (Scope.READ,)


def test_a_keys_token_goes_to_a_file(data_dir: Path) -> None:
    file = data_dir / "token"
    made = json.loads(run("keys", "create", "prometheus", "--scope", "metrics", "--token-file", str(file), "--json"))
    assert file.stat().st_mode & 0o777 == 0o600
    token = file.read_text().strip()
    assert token not in json.dumps(made)
    key = Keyring(data_dir / "keys.json").authenticate(token)
    assert key is not None
    assert key.id == made["id"]
    run("keys", "create", "other", "--token-file", str(file), code=2)
    assert len(Keyring(data_dir / "keys.json").list()) == 1


def test_unknown_keys_and_scopes_are_usage_errors(data_dir: Path) -> None:
    assert "no key" in run("keys", "revoke", "0123456789ab", code=2)
    run("keys", "create", "x", "--scope", "everything", code=2)
    assert not (data_dir / "keys.json").exists()


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x1b[2J", "x" * 65])
def test_a_keys_name_is_one_printable_line(data_dir: Path, name: str) -> None:
    assert "printable" in run("keys", "create", name, code=2)
    assert not (data_dir / "keys.json").exists()
    run("keys", "create", "x" * 64)


@pytest.mark.parametrize(
    ("program", "variable", "value"),
    [
        ("draftmill_service.cli", "DRAFTMILL_REDIS_URL", "redis://:secret/word@x"),
        ("draftmill_service.cli", "DRAFTMILL_PORT", "x"),
        ("draftmill_worker.cli", "DRAFTMILL_LEASE_SECONDS", "inf"),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it(program: str, variable: str, value: str, data_dir: Path) -> None:
    command = [sys.executable, "-m", program, "run"]
    environ = {**os.environ, variable: value}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f": {variable}: " in done.stderr
    assert "secret" not in done.stderr
