import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from draftmill_service.keyring import Keyring, Scope


def test_keys_made_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: Keyring(path).create(f"key {n}", {Scope.READ}), range(24)))
    keyring = Keyring(path)
    assert {key.id for key in keyring.list()} == {key.id for key, _ in made}
    assert all(keyring.authenticate(token) == key for key, token in made)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.glob(".keys-*")] == []


@pytest.mark.parametrize(
    "token", ["", "dm_", "x" * 200, "dm_{id}_", "dm_{id}_{other}", "dm_{other_id}_{secret}", "{token}\n"]
)
def test_anything_else_is_no_key(tmp_path: Path, token: str) -> None:
    keyring = Keyring(tmp_path / "keys.json")
    key, whole = keyring.create("one", {Scope.READ})
    secret = whole.rpartition("_")[2]
    other = secret[::-1]
    parts = {"id": key.id, "other": other, "other_id": key.id[::-1], "secret": secret, "token": whole}
    assert keyring.authenticate(whole) == key
    assert keyring.authenticate(token.format(**parts)) is None


def test_keyring_without_a_file_knows_nobody(tmp_path: Path) -> None:
    assert Keyring(tmp_path / "none.json").list() == ()
