"""Where the client looks for the service, and to whom it gives a key."""

import json
from pathlib import Path

import pytest

from draftmill import NoServiceError, SettingsError
from draftmill.connection import Connection, data_dir, find_connection


def embedded(folder: Path, url: str = "http://127.0.0.1:8642") -> dict[str, str]:
    state = {"url": url, "api_key": "dm_a_b", "pid": 1, "started_at": "2026-01-01T00:00:00Z", "later": True}
    (folder / "embedded.json").write_text(json.dumps(state))
    return {"DRAFTMILL_DATA_DIR": str(folder)}


def test_arguments_come_before_the_environment(tmp_path: Path) -> None:
    environ = {"DRAFTMILL_URL": "http://env", "DRAFTMILL_API_KEY": "k", **embedded(tmp_path)}
    assert find_connection("https://x/prefix/", "a", environ) == Connection("https://x/prefix", "a")
    assert find_connection(None, None, environ) == Connection("http://env", "k")


def test_the_embedded_service_is_found(tmp_path: Path) -> None:
    assert find_connection(environ=embedded(tmp_path)) == Connection("http://127.0.0.1:8642", "dm_a_b")


def test_the_embedded_key_goes_to_the_embedded_service_alone(tmp_path: Path) -> None:
    environ = embedded(tmp_path)
    assert find_connection(environ=environ | {"DRAFTMILL_URL": "http://other"}).api_key is None
    assert find_connection("http://127.0.0.1:8642", environ=environ).api_key == "dm_a_b"


def test_no_service_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoServiceError, match="draftmill up"):
        find_connection(environ={"DRAFTMILL_DATA_DIR": str(tmp_path)})


def test_a_damaged_state_file_is_said(tmp_path: Path) -> None:
    environ = embedded(tmp_path)
    (tmp_path / "embedded.json").write_text("{")
    with pytest.raises(NoServiceError, match="damaged"):
        find_connection(environ=environ)


@pytest.mark.parametrize("url", ["ftp://x", "localhost:8642", "http://", "x", "http://[", "http://x:port"])
def test_a_url_must_be_one(url: str) -> None:
    with pytest.raises(SettingsError, match="DRAFTMILL_URL"):
        find_connection(url, "k", {})


def test_the_data_directory_follows_xdg(tmp_path: Path) -> None:
    assert data_dir({"XDG_DATA_HOME": str(tmp_path)}) == tmp_path / "draftmill"
    assert data_dir({"DRAFTMILL_DATA_DIR": "~/x"}) == Path.home() / "x"
    assert data_dir({}) == Path.home() / ".local" / "share" / "draftmill"


def test_a_key_is_not_printed() -> None:
    assert "secret" not in repr(Connection("http://x", "dm_a_secret"))


@pytest.mark.parametrize(
    ("url", "loopback"), [("http://127.0.0.1:1", True), ("http://[::1]:2", True), ("http://10.0.0.1", False)]
)
def test_loopback_needs_no_proxy(url: str, loopback: bool) -> None:
    assert Connection(url, None).is_loopback is loopback


def test_white_space_around_url_and_key_is_dropped() -> None:
    environ = {"DRAFTMILL_URL": " http://x/\r\n", "DRAFTMILL_API_KEY": "dm_a_b\r\n"}
    assert find_connection(environ=environ) == Connection("http://x", "dm_a_b")


@pytest.mark.parametrize("key", ["secret\nX: y", "secret\x00", "sécret", "secret secret"])
def test_a_key_that_no_header_holds_is_refused_without_its_value(key: str) -> None:
    with pytest.raises(SettingsError, match="DRAFTMILL_API_KEY") as caught:
        find_connection(environ={"DRAFTMILL_URL": "http://x", "DRAFTMILL_API_KEY": key})
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://user:secret@x", "ftp://user:secret@x", "user:secret@x"])
def test_a_password_in_the_url_is_refused_without_its_value(url: str) -> None:
    with pytest.raises(SettingsError, match="DRAFTMILL_URL") as caught:
        find_connection(url, "k", {})
    assert "secret" not in str(caught.value)
