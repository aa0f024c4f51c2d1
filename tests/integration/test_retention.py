"""gc removes what its dry run said and nothing else, whatever the store, whoever is at work, wherever it is killed."""

import asyncio
import fcntl
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from draftmill_service.cli import app
from draftmill_service.ledger import Ledger
from draftmill_service.retention.gc import Collector, Report
from draftmill_service.retention.layout import Kind
from draftmill_service.retention.policy import Limits
from draftmill_service.retention.tombstones import read_tombstone
from tests.integration.retained import Running, Store, Thing, build, needed, source_name, stores, tree, variant_name
from tests.redis_server import free_port

LIMITS = st.builds(
    Limits,
    variants_days=st.none() | st.integers(0, 60),
    variants_bytes=st.none() | st.integers(0, 8000),
    sources_days=st.none() | st.integers(0, 60),
    sources_bytes=st.none() | st.integers(0, 8000),
    jobs_days=st.none() | st.integers(0, 1),
)
EVERYTHING = Limits(variants_days=1, sources_days=1, jobs_days=0)
MIXED = Store(
    variants=[Thing(0, 30, 100, pinned=False), Thing(1, 30, 100, pinned=True), Thing(2, 30, 100, pinned=False)],
    sources=[
        Thing(0, 30, 100, pinned=False),
        Thing(3, 30, 100, pinned=False),
        Thing(4, 30, 9, False, local=True),
    ],
    running=[Running(variant=2, source=3, told=True)],
    ended=2,
    dead=1,
    partials=[1, 50],
    trash=1,
    batches=1,
)


def collect(data: Path, url: str, limits: Limits, *, dry: bool = False) -> Report:
    async def run() -> Report:
        ledger = Ledger.connect(url)
        try:
            collector = Collector(data, ledger, limits)
            return await (collector.dry_run() if dry else collector.run())
        finally:
            await ledger.close()

    return asyncio.run(run())


def _names(report: Report, kind: Kind) -> set[str]:
    return {line.name for line in report.removed if line.kind is kind}


def _allowed(report: Report) -> tuple[set[str], set[str]]:
    """What may be gone, as beginnings of paths, and what may be new."""
    gone, new = set(), set()
    for line in report.removed:
        gone.add(line.name)
        if line.kind is Kind.SOURCE:
            gone |= {f"{line.name}.manifest.json", f"{line.name}.identity.json"}
        if line.kind in (Kind.SOURCE, Kind.BATCH):
            new.add(f"{line.name}.tombstone.json")
        if line.kind is Kind.ATTEMPT:
            new.add(f"{line.name.rpartition('/')[0]}/tombstone.json")
        if line.kind is Kind.VARIANT:
            evidence = line.name.replace("variants", "evidence")
            new |= {f"{evidence}/tombstone.json", f"{evidence}/.lock"}
        new.add(f"{line.name.split('/')[0]}/.trash")
    return gone, new


def _check_nothing_else(before: dict[str, bytes | None], after: dict[str, bytes | None], report: Report) -> None:
    gone, new = _allowed(report)
    for path in before.keys() - after.keys():
        assert any(path == name or path.startswith(f"{name}/") for name in gone), path
    assert not {name for name in gone if name in after and not name.endswith(".trash")}
    # A lock whose holder was killed is free, and keeps its name until the next holder goes.
    assert {path for path in after.keys() - before.keys() if not path.endswith(".lock")} <= new
    assert {path for path in before.keys() & after.keys() if before[path] != after[path]} == set()


def _variants(store: Store) -> dict[str, Thing]:
    return {variant_name(one.number): one for one in store.variants}


def _sources(store: Store) -> dict[str, Thing]:
    return {source_name(one): one for one in store.sources}


def _check_protected(store: Store, report: Report) -> None:
    things = _variants(store) | _sources(store)
    untold = any(not job.told for job in store.running)
    for name in _names(report, Kind.VARIANT) | _names(report, Kind.SOURCE):
        assert not things[name].pinned
        assert name not in needed(store)
        assert not (untold and things[name].days == 0)


def _check_limits(store: Store, limits: Limits, report: Report) -> None:
    untold = any(not job.told for job in store.running)
    for kind, things, days, most in (
        (
            Kind.VARIANT,
            _variants(store),
            limits.variants_days,
            limits.variants_bytes,
        ),
        (Kind.SOURCE, _sources(store), limits.sources_days, limits.sources_bytes),
    ):
        went = _names(report, kind)
        free = {
            name: one
            for name, one in things.items()
            if not one.pinned and name not in needed(store) and not (untold and one.days == 0)
        }
        stayed = {name: one for name, one in free.items() if name not in went}
        for name, one in free.items():
            if days is not None and one.days > days:
                assert name in went
            if days is not None and one.days < days and most is None:
                assert name in stayed
        left = sum(one.size for name, one in things.items() if name not in went)
        if most is not None:
            assert left <= most or not stayed
        if days is None:
            # The least recently used go first, and no more of them than it takes.
            assert not [name for name in went for other in stayed if free[name].days < stayed[other].days]
            assert not went or left + max(free[name].size for name in went) > (most or 0)


@settings(max_examples=20, deadline=None)
@given(store=stores(), limits=LIMITS)
def test_gc_removes_what_the_dry_run_said_and_nothing_else(redis_url: str, store: Store, limits: Limits) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    data = Path(tempfile.mkdtemp(prefix="draftmill-gc-"))
    try:
        build(data, store, redis_url)
        before = tree(data)
        said = collect(data, redis_url, limits, dry=True)
        assert tree(data) == before
        report = collect(data, redis_url, limits)
        assert report.removed == said.removed
        assert report.kept == ()
        _check_nothing_else(before, tree(data), report)
        _check_protected(store, report)
        _check_limits(store, limits, report)
        assert len(_names(report, Kind.PARTIAL)) == sum(hours >= 24 for hours in store.partials)
        jobs = max(store.ended, store.dead) if limits.jobs_days == 0 else 0
        assert len(_names(report, Kind.ATTEMPT)) == jobs
        assert len(_names(report, Kind.SCRATCH)) == (0 if jobs else store.dead)
        assert len(_names(report, Kind.BATCH)) == (store.batches if limits.jobs_days == 0 else 0)
        # A second run finds nothing more.
        assert collect(data, redis_url, limits).removed == ()
    finally:
        for root, _, _ in os.walk(data):
            Path(root).chmod(0o755)
        shutil.rmtree(data)


def _killed_at(step: int, data: Path, url: str) -> None:
    """gc in this process, which ends at once before its nth change to the data directory."""
    left = step

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        changes = event in {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate"} or writes
        if changes and str(data) in str(arguments[0]):
            left -= 1
            if left == 0:
                os._exit(9)

    sys.addaudithook(hook)
    collect(data, url, EVERYTHING)
    os._exit(0)


def _crash(step: int, data: Path, url: str) -> bool:
    """False when it came to its end before the step."""
    child = multiprocessing.get_context("fork").Process(target=_killed_at, args=(step, data, url))
    child.start()
    child.join()
    assert child.exitcode in (0, 9)
    return child.exitcode == 9


def _check_whole_or_gone(data: Path, before: dict[str, bytes | None], said: Report) -> None:
    for line in said.removed:
        if line.kind not in (Kind.VARIANT, Kind.SOURCE, Kind.ATTEMPT, Kind.BATCH):
            continue
        inside = [path for path in before if path.startswith(f"{line.name}/")]
        there = [path for path in inside if (data / path).exists()]
        assert there in (inside, []), "an item is whole or gone"
        stone = {
            Kind.VARIANT: data / line.name.replace("variants", "evidence") / "tombstone.json",
            Kind.SOURCE: data / f"{line.name}.tombstone.json",
            Kind.BATCH: data / f"{line.name}.tombstone.json",
            Kind.ATTEMPT: (data / line.name).with_name("tombstone.json"),
        }[line.kind]
        assert there or read_tombstone(stone) is not None, "what is gone has its tombstone"


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_before_any_of_its_steps_it_leaves_no_half(clean_redis: str, tmp_path: Path, stride: int) -> None:
    original = tmp_path / "original"
    build(original, MIXED, clean_redis)
    before = tree(original)
    said = collect(original, clean_redis, EVERYTHING, dry=True)
    assert {line.kind for line in said.removed} == set(Kind) - {Kind.SCRATCH}
    step = 1 - stride
    while True:
        step += stride
        data = tmp_path / str(step)
        shutil.copytree(original, data, copy_function=shutil.copy2)
        # A running attempt's result names paths of the original.
        for result in data.glob("jobs/*/1/pull/result.json"):
            result.write_text(result.read_text().replace(str(original), str(data)))
        crashed = _crash(step, data, clean_redis)
        _check_whole_or_gone(data, before, said)
        collect(data, clean_redis, EVERYTHING)
        _check_nothing_else(
            {path: None if content is None else b"" for path, content in before.items()},
            {path: None if content is None else b"" for path, content in tree(data).items()},
            said,
        )
        if not crashed:
            break
    assert step > 20


def _hold(data: Path, store: Store) -> Callable[[], None]:
    lock = (data / f"{source_name(store.sources[0])}.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock.close


def test_a_source_whose_lock_is_held_is_kept(clean_redis: str, tmp_path: Path) -> None:
    store = Store(sources=[Thing(0, 30, 100, pinned=False)])
    build(tmp_path, store, clean_redis)
    let_go = _hold(tmp_path, store)
    report = collect(tmp_path, clean_redis, EVERYTHING)
    assert report.removed == ()
    assert [line.why for line in report.kept] == ["somebody holds its lock"]
    let_go()
    assert len(collect(tmp_path, clean_redis, EVERYTHING).removed) == 1


def test_what_was_used_between_deciding_and_removing_is_kept(clean_redis: str, tmp_path: Path) -> None:
    """An attempt that begins after the look marks what it takes; its record is not asked for again."""
    build(tmp_path, Store(variants=[Thing(0, 30, 100, pinned=False)]), clean_redis)
    mark = next((tmp_path / "evidence").glob("*/manifest.json"))

    async def run() -> Report:
        ledger = Ledger.connect(clean_redis)
        leases = ledger.leases

        async def used_meanwhile() -> dict[str, float]:
            os.utime(mark)
            return await leases()

        ledger.leases = used_meanwhile  # type: ignore[method-assign]
        try:
            return await Collector(tmp_path, ledger, EVERYTHING).run()
        finally:
            await ledger.close()

    report = asyncio.run(run())
    assert [line.why for line in report.kept] == ["it was used meanwhile"]
    assert (tmp_path / variant_name(0)).is_dir()


def gc(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.output.strip()


@pytest.fixture
def data(clean_redis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTMILL_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("DRAFTMILL_REDIS_URL", clean_redis)
    build(tmp_path, MIXED, clean_redis)
    return tmp_path


def test_the_command_says_then_does(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTMILL_KEEP_VARIANTS_DAYS", "1")
    said = json.loads(gc("gc", "--dry-run", "--json", "--sources-size", "0.1KB"))
    assert said["dry_run"]
    assert variant_name(0) in [line["name"] for line in said["removed"]]
    text = gc("gc", "--sources-size", "0.1KB")
    for line in said["removed"]:
        assert line["name"] in text
    stone = read_tombstone(data / "evidence" / variant_name(0).removeprefix("variants/") / "tombstone.json")
    assert stone is not None
    assert stone.why == "unused for 1 days"
    assert "is no size" in gc("gc", "--sources-size", "many", code=2)


def test_without_limits_only_leftovers_go(data: Path) -> None:
    kinds = {line["kind"] for line in json.loads(gc("gc", "--json"))["removed"]}
    assert kinds == {"scratch", "partial", "trash"}


def test_pins(data: Path) -> None:
    digest = variant_name(0).removeprefix("variants/")
    assert gc("pin", digest[:12], "--note", "serving") == variant_name(0)
    listed = json.loads(gc("pins", "--json"))
    assert [(pin["name"], pin["note"]) for pin in listed if pin["note"]] == [(variant_name(0), "serving")]
    assert variant_name(0) not in gc("gc", "--variants-days", "1")
    assert gc("unpin", variant_name(0)) == variant_name(0)
    assert variant_name(0) in gc("gc", "--variants-days", "1")
    assert "nothing named" in gc("pin", "variants/0000", code=2)
    assert "say more" in gc("pin", "variants/", code=2)


def test_two_at_once_and_no_ledger(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(data)
    with (data / "gc.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another gc" in gc("gc", code=75)
        assert "would be removed" in gc("gc", "--dry-run")
    monkeypatch.setenv("DRAFTMILL_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    assert "does not answer" in gc("gc", "--variants-days", "1", code=1)
    assert tree(data).keys() - before.keys() == {"gc.lock"}
