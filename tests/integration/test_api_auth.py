"""Who may do what, and that no token shows anywhere."""

import json
import logging
import stat
from collections.abc import Iterator

import httpx
import pytest

from draftmill_service.keyring import Keyring, Scope
from draftmill_service.logs import JsonFormatter
from tests.integration.live import Live
from tests.integration.test_api import SPEC, UNKNOWN, problem

BOOT, BATCH = "b" + "0" * 32, "s" + "0" * 26
CALLS = [
    ("POST", "/v1/jobs", Scope.WRITE),
    ("GET", "/v1/jobs", Scope.READ),
    ("GET", f"/v1/jobs/{UNKNOWN}", Scope.READ),
    ("POST", f"/v1/jobs/{UNKNOWN}/cancel", Scope.WRITE),
    ("POST", f"/v1/jobs/{UNKNOWN}/retry", Scope.WRITE),
    ("GET", f"/v1/jobs/{UNKNOWN}/events", Scope.READ),
    ("GET", f"/v1/jobs/{UNKNOWN}/events?stream=true", Scope.READ),
    ("GET", f"/v1/jobs/{UNKNOWN}/plan", Scope.READ),
    ("GET", f"/v1/jobs/{UNKNOWN}/verify", Scope.READ),
    ("GET", f"/v1/jobs/{UNKNOWN}/acceptance", Scope.READ),
    ("GET", f"/v1/jobs/{UNKNOWN}/choice", Scope.READ),
    ("GET", f"/v1/jobs/{UNKNOWN}/head", Scope.READ),
    ("GET", f"/v1/jobs/{UNKNOWN}/artifacts", Scope.READ),
    ("GET", f"/v1/jobs/{UNKNOWN}/artifacts/config.json", Scope.READ),
    ("HEAD", f"/v1/jobs/{UNKNOWN}/artifacts/config.json", Scope.READ),
    ("POST", "/v1/batches", Scope.WRITE),
    ("GET", "/v1/batches", Scope.READ),
    ("GET", f"/v1/batches/{BATCH}", Scope.READ),
    ("GET", f"/v1/batches/{BATCH}/items", Scope.READ),
    ("GET", f"/v1/batches/{BATCH}/report", Scope.READ),
    ("POST", f"/v1/batches/{BATCH}/cancel", Scope.WRITE),
    ("POST", f"/v1/batches/{BATCH}/retry", Scope.WRITE),
    ("POST", "/v1/preflight", Scope.WRITE),
    ("GET", "/v1/formats", Scope.READ),
    ("GET", "/v1/receipts", Scope.READ),
    ("GET", "/v1/receipts/chains", Scope.READ),
    ("GET", f"/v1/receipts/diff?a={BOOT}&b={BOOT}", Scope.READ),
    ("GET", f"/v1/receipts/{BOOT}", Scope.READ),
    ("GET", "/metrics", Scope.METRICS),
]


@pytest.fixture
def anonymous(live: Live) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url) as client:
        yield client


@pytest.mark.parametrize(("method", "path", "scope"), CALLS)
def test_scope_is_required(live: Live, anonymous: httpx.Client, method: str, path: str, scope: Scope) -> None:
    body = SPEC if path in {"/v1/jobs", "/v1/preflight"} and method == "POST" else None
    bare = anonymous.request(method, path, json=body)
    assert bare.status_code == 401
    assert bare.headers["www-authenticate"].startswith("Bearer")
    for other in set(Scope) - {scope}:
        with live.client(live.tokens[other]) as client:
            assert client.request(method, path, json=body).status_code == 403
    with live.client(live.tokens[scope]) as client:
        assert client.request(method, path, json=body).status_code not in {401, 403}


def test_every_route_is_in_the_table(live: Live, api: httpx.Client) -> None:
    """A route added without a line above fails here."""
    operations = {
        (method.upper(), path)
        for path, item in api.get("/openapi.json").json()["paths"].items()
        for method in item
        if path not in {"/healthz", "/readyz"}
    }
    stand_ins = {UNKNOWN: "{job_id}", "config.json": "{path}", BOOT: "{boot}", BATCH: "{batch_id}"}
    named = set()
    for method, path, _ in CALLS:
        template = path.partition("?")[0]
        for value, name in stand_ins.items():
            template = template.replace(value, name)
        named.add((method, template))
    assert operations <= named


def test_unknown_paths_tell_nothing_without_a_key(anonymous: httpx.Client) -> None:
    for path in ("/openapi.json", "/v1/nothing", "/docs", "/healthz/", "/healthz/../metrics"):
        problem(anonymous.get(path), "unauthenticated")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Basic abc",
        "Bearer dm_0123456789ab_" + "0" * 64,
        "Bearer \xff",
        "Token {}",
        "Bearer {}x",
    ],
)
def test_wrong_credentials(live: Live, anonymous: httpx.Client, header: str) -> None:
    value = header.format(live.token).encode("latin-1")
    problem(anonymous.get("/v1/jobs", headers=[(b"Authorization", value)]), "unauthenticated")


def test_keys_made_and_revoked_while_running(live: Live) -> None:
    keyring = Keyring(live.settings.keys_file)
    key, token = keyring.create("late", {Scope.READ})
    with live.client(token) as client:
        assert client.get("/v1/jobs").status_code == 200
        keyring.revoke(key.id)
        problem(client.get("/v1/jobs"), "unauthenticated")


def test_keys_file_holds_no_secret_and_is_private(live: Live) -> None:
    path = live.settings.keys_file
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    for token in (live.token, *live.tokens.values()):
        assert token not in text
        assert token.rpartition("_")[2] not in text


def test_body_is_not_read_for_strangers(anonymous: httpx.Client) -> None:
    problem(anonymous.post("/v1/jobs", content=b"{"), "unauthenticated")
    problem(anonymous.post("/v1/jobs", content=b"x" * 2_000_000), "unauthenticated")


def test_no_token_in_answers_or_logs(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = live.token
    with live.client() as client:
        answers = [
            client.get("/v1/jobs"),
            client.get(f"/v1/jobs/{token}"),
            client.get("/v1/jobs", params={"cursor": "x", "api_key": token}),
            client.post("/v1/jobs", json={**SPEC, "format": "fp9"}),
        ]
    formatter = JsonFormatter()
    lines = [formatter.format(record) for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert any('"request"' in line for line in lines)
    assert all(json.loads(line)["time"] for line in lines)
    assert token not in "".join(lines)
    for answer in answers:
        if token not in str(answer.request.url):
            assert token not in answer.text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("token dm_0123456789ab_" + "ab" * 32 + " refused", "ab" * 32),
        ("redis://user:hunter2@host:6379/0", "hunter2"),
        ("redis://:hunter2@host", "hunter2"),
        ("Authorization: Bearer something-else", "something-else"),
        ("HF_TOKEN=hf_abcdefghijklmnop", "abcdefghijklmnop"),
    ],
)
def test_secrets_are_struck_out_of_logs(text: str, secret: str) -> None:
    record = logging.makeLogRecord({"msg": "%s", "args": (text,), "error": text})
    line = JsonFormatter().format(record)
    assert secret not in line
    assert "***" in line
