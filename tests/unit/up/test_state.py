"""What `draftmill up` leaves in its data directory, and the Redis it configures."""

import stat
from pathlib import Path

import pytest

from draftmill.connection import find_connection, read_embedded
from draftmill.errors import NoServiceError
from draftmill_service.keyring import Keyring, Scope
from draftmill_service.up import embedded_redis
from draftmill_service.up.embedded import Plan
from draftmill_service.up.errors import UpError
from draftmill_service.up.state import KEY_NAME, only_instance, own_key, write_state
from draftmill_worker.launcher import LEAVE_SECONDS
from draftmill_worker.settings import WorkerSettings


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_state_file_is_the_users_alone_and_is_found(tmp_path: Path) -> None:
    write_state(tmp_path, "http://127.0.0.1:1", "dm_x", 42)
    assert mode(tmp_path / "embedded.json") == 0o600
    connection = find_connection(environ={"DRAFTMILL_DATA_DIR": str(tmp_path)})
    assert (connection.url, connection.api_key) == ("http://127.0.0.1:1", "dm_x")
    write_state(tmp_path, "http://127.0.0.1:1", "dm_x", None)
    with pytest.raises(NoServiceError, match="stopped"):
        find_connection(environ={"DRAFTMILL_DATA_DIR": str(tmp_path)})


def test_the_key_stays_the_same_while_it_is_valid(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    first = own_key(tmp_path, keys)
    write_state(tmp_path, "http://x", first, None)
    assert own_key(tmp_path, keys) == first
    known = Keyring(keys).authenticate(first)
    assert known is not None
    assert set(known.scopes) == set(Scope)
    Keyring(keys).revoke(known.id)
    assert own_key(tmp_path, keys) != first


def test_a_key_that_was_lost_is_revoked(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    lost = own_key(tmp_path, keys)
    other = Keyring(keys).create("ops", {Scope.READ})[1]
    own_key(tmp_path, keys)
    assert Keyring(keys).authenticate(lost) is None
    assert Keyring(keys).authenticate(other) is not None
    assert [key.name for key in Keyring(keys).list() if key.revoked_at is None] == ["ops", KEY_NAME]


def test_one_instance_per_data_directory(tmp_path: Path) -> None:
    with only_instance(tmp_path), pytest.raises(UpError, match=r"already runs .* \(process \d+\)"):
        only_instance(tmp_path).__enter__()
    with only_instance(tmp_path):
        assert read_embedded(tmp_path) is None


def test_redis_keeps_what_it_acknowledged_and_lets_nobody_else_in(tmp_path: Path) -> None:
    folder = tmp_path / 'a "quoted" \\ place'
    folder.mkdir()
    server = embedded_redis.configure(folder)
    lines = server.config.read_text().splitlines()
    for line in ("bind 127.0.0.1", "appendonly yes", "appendfsync always", 'save ""', "maxmemory-policy noeviction"):
        assert line in lines
    password = server.url.partition("://:")[2].partition("@")[0]
    assert f"requirepass {password}" in lines
    assert len(password) == 64
    assert mode(server.config) == 0o600
    assert embedded_redis.configure(folder).url.partition("@")[0] != server.url.partition("@")[0]


def test_a_server_on_path_comes_first_and_its_link_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "redis-check-rdb").touch(mode=0o755)
    (tmp_path / "redis-server").symlink_to("redis-check-rdb")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded_redis.find_server() == tmp_path / "redis-server"
    (tmp_path / "valkey-server").touch(mode=0o755)
    assert embedded_redis.find_server() == tmp_path / "valkey-server"


def test_the_wheels_binary_is_found_without_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = embedded_redis.find_server()
    assert found.name == "valkey-server"
    assert found.is_file()


def test_without_any_redis_three_ways_out_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded_redis, "_WHEEL", "no-such-distribution")
    with pytest.raises(UpError, match="DRAFTMILL_REDIS_URL") as caught:
        embedded_redis.find_server()
    assert "draftmill[embedded]" in str(caught.value)
    assert "redis-server" in str(caught.value)


def test_only_the_worker_sees_the_hubs_token(tmp_path: Path) -> None:
    environ = {"HF_TOKEN": "hf_x", "DRAFTMILL_API_KEY": "dm_x", "HOME": "/h", "DRAFTMILL_ALLOWED_ROOTS": "/a"}
    plan = Plan(tmp_path, 1, None, [Path("/b")], environ)
    service, worker = plan.environment("redis://x", hub=False), plan.environment("redis://x", hub=True)
    assert "HF_TOKEN" not in service
    assert worker["HF_TOKEN"] == "hf_x"
    for seen in (service, worker):
        assert "DRAFTMILL_API_KEY" not in seen
        assert seen["DRAFTMILL_REDIS_URL"] == "redis://x"
        assert seen["DRAFTMILL_ALLOWED_ROOTS"] == "/a:/b"
        assert seen["HOME"] == "/h"


@pytest.mark.parametrize(("environ", "drain"), [({}, 8), ({"DRAFTMILL_DRAIN_SECONDS": "90"}, 90)])
def test_a_worker_has_the_time_that_it_gives_a_stage(tmp_path: Path, environ: dict[str, str], drain: float) -> None:
    assert Plan(tmp_path, 1, None, [], environ).worker_grace > drain + 2 * LEAVE_SECONDS
    assert WorkerSettings.model_fields["drain_seconds"].default == 8
