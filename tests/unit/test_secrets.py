"""Secrets by file: read where the variable would be, never repeated."""

from pathlib import Path

import pytest

from draftmill._environment import read_settings, secret
from draftmill.connection import find_connection
from draftmill.errors import SettingsError
from draftmill.problems import ProblemError
from draftmill_service.settings import ServiceSettings
from draftmill_worker.pull.client import _token
from draftmill_worker.settings import WorkerSettings

HIDDEN = "s3cret"
URL = f"redis://:{HIDDEN}@127.0.0.1:6379/0"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "secret"


def test_the_variable_goes_before_the_file(file: Path) -> None:
    file.write_text("from the file\n")
    environ = {"X_FILE": str(file)}
    assert secret("X", environ) == "from the file"
    assert secret("X", environ | {"X": " from the variable "}) == "from the variable"
    assert secret("X", {}) is None
    file.write_text(" \n")
    assert secret("X", environ) is None


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(file: Path, content: bytes | None) -> None:
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match=rf"X_FILE: {file} cannot be read"):
        secret("X", {"X_FILE": str(file)})


@pytest.mark.parametrize("settings", [ServiceSettings, WorkerSettings])
def test_redis_by_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, settings: type[ServiceSettings] | type[WorkerSettings]
) -> None:
    monkeypatch.setenv("DRAFTMILL_REDIS_URL_FILE", str(file))
    monkeypatch.delenv("DRAFTMILL_REDIS_URL", raising=False)
    file.write_text(f"{URL}\n")
    read = read_settings(settings)
    assert read.redis_url == URL
    assert HIDDEN not in repr(read)
    file.write_text(f"http://{HIDDEN}")
    with pytest.raises(SettingsError, match="DRAFTMILL_REDIS_URL: must be redis://") as refused:
        read_settings(settings)
    assert HIDDEN not in str(refused.value)
    file.unlink()
    with pytest.raises(SettingsError, match="DRAFTMILL_REDIS_URL_FILE"):
        read_settings(settings)


def test_the_hubs_token_by_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_TOKEN_FILE", str(file))
    file.write_text("hf_abcdefgh\n")
    assert _token() == "hf_abcdefgh"
    file.unlink()
    with pytest.raises(ProblemError, match="token-invalid: HF_TOKEN_FILE"):
        _token()


def test_a_clients_key_by_file(file: Path) -> None:
    key = f"dm_{'0' * 12}_{'1' * 64}"
    file.write_text(f"{key}\n")
    environ = {"DRAFTMILL_URL": "http://127.0.0.1:1", "DRAFTMILL_API_KEY_FILE": str(file)}
    assert find_connection(environ=environ).api_key == key
