"""A data directory as jobs leave it, of any shape, for the tests of retention."""

import asyncio
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

from draftmill.batches import BatchSpec
from draftmill.digests import digest
from draftmill.formats import Format
from draftmill.jobs import JobSpec, QuantizeOptions, RepoSource, ResolvedSource, ResolvedSpec, StageRecord
from draftmill.reports import Manifest, ManifestFile
from draftmill.states import Outcome, Stage, StageState
from draftmill_service.archivist import batch_record_path
from draftmill_service.ledger import Ledger, WorkerLedger
from draftmill_service.retention.pins import Pins

DAY = 86_400
LEASE = 600.0
LEFT = '{"from": "an earlier run"}'


@dataclass(frozen=True)
class Thing:
    """A variant or a source."""

    number: int
    days: int
    """Since it was used."""
    size: int
    pinned: bool
    local: bool = False


@dataclass(frozen=True)
class Running:
    variant: int
    source: int
    told: bool
    """Whether its attempt has said what it needs."""


@dataclass
class Store:
    variants: list[Thing] = field(default_factory=list)
    sources: list[Thing] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    ended: int = 0
    """Jobs that are done."""
    dead: int = 0
    """Attempts whose scratch was left, in jobs that are done."""
    partials: list[int] = field(default_factory=list)
    """Hours since each was written to."""
    trash: int = 0
    batches: int = 0
    """That are done and archived."""


def _things(local: bool) -> st.SearchStrategy[list[Thing]]:
    thing = st.builds(
        Thing,
        number=st.integers(0, 9),
        days=st.integers(0, 60),
        size=st.integers(1, 3000),
        pinned=st.booleans(),
        local=st.booleans() if local else st.just(False),
    )
    return st.lists(thing, max_size=6, unique_by=lambda thing: thing.number)


def stores() -> st.SearchStrategy[Store]:
    running = st.builds(Running, variant=st.integers(0, 9), source=st.integers(0, 9), told=st.booleans())
    return st.builds(
        Store,
        variants=_things(local=False),
        sources=_things(local=True),
        running=st.lists(running, max_size=2),
        ended=st.integers(0, 3),
        dead=st.integers(0, 2),
        partials=st.lists(st.integers(0, 60), max_size=3),
        trash=st.integers(0, 2),
        batches=st.integers(0, 2),
    )


def variant_name(number: int) -> str:
    return f"variants/{digest(['variant', number])}"


def source_name(thing: Thing) -> str:
    return f"sources/path-{digest(['path', thing.number])}" if thing.local else _commit_of(thing.number)


def _commit_of(number: int) -> str:
    return f"sources/org--drafter-{number % 2}/{number:040x}"


def _write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def _age(path: Path, seconds: float) -> None:
    at = path.stat().st_mtime - seconds
    os.utime(path, (at, at))


def build(data: Path, store: Store, redis_url: str) -> None:
    for thing in store.variants:
        _variant(data, thing)
    for thing in store.sources:
        _source(data, thing)
    for number, hours in enumerate(store.partials):
        partial = data / f"sources/org--late/{number:040x}.partial"
        _write(partial / "model.safetensors", 100)
        _age(partial / "model.safetensors", hours * 3600)
        _age(partial, hours * 3600)
    for number in range(store.trash):
        _write(data / f"variants/.trash/{number}/model.safetensors", 10)
    # What no rule names.
    _write(data / "keys.json", 2)
    _write(data / "sources/prompts/abc.jsonl", 20)
    _write(data / "receipts/chains/host.jsonl", 20)
    _write(data / "variants/not-a-digest/file", 20)
    for _ in range(store.batches):
        asyncio.run(_batch(data, redis_url))
    worker = WorkerLedger.connect(redis_url)
    for job in store.running:
        _running(data, job, worker, redis_url)
    for number in range(max(store.ended, store.dead)):
        job_id = _job(redis_url)
        claim = worker.claim(job_id, "test", LEASE)
        assert claim is not None
        _write(data / "jobs" / job_id / "1" / "plan" / "result.json", 50)
        _write(data / "jobs" / job_id / "record.json", 30)
        if number < store.dead:
            _write(data / "jobs" / job_id / "1" / "scratch" / "variant" / "model.safetensors", 70)
        assert worker.finish(claim, Outcome.SUCCEEDED)
    worker.close()


async def _batch(data: Path, redis_url: str) -> None:
    """Canceled before its item began; the item's own record is not there."""
    ledger = Ledger.connect(redis_url)
    spec = BatchSpec(sources=(RepoSource(repo="org/drafter"),), formats=(Format.FP8,))
    batch_id, _ = await ledger.submit_batch(spec, owner="test", cap=1)
    await ledger.work_on(batch_id)
    await ledger.cancel_batch(batch_id)
    record = await ledger.batch_record(batch_id)
    assert record is not None
    path = batch_record_path(data, batch_id)
    path.parent.mkdir(parents=True)
    path.write_text(record.model_dump_json(by_alias=True))
    await ledger.close()


def _variant(data: Path, thing: Thing) -> None:
    folder = data / variant_name(thing.number)
    _write(folder / "nested" / "model.safetensors", thing.size)
    manifest = data / "evidence" / folder.name / "manifest.json"
    _write(manifest, 0)
    manifest.write_text(Manifest(files=()).model_dump_json())
    _write(manifest.parent / "job" / "verify.json", 10)
    _age(manifest, thing.days * DAY)
    for path in (folder / "nested" / "model.safetensors", folder / "nested", folder):
        path.chmod(0o555)
    if thing.pinned:
        Pins(data).add(variant_name(thing.number))


def _source(data: Path, thing: Thing) -> None:
    name = source_name(thing)
    _write(data / name / "model.safetensors", thing.size)
    manifest = data / f"{name}.manifest.json"
    entry = ManifestFile(path="model.safetensors", size=thing.size, sha256="0" * 64)
    manifest.write_text(Manifest(files=(entry,)).model_dump_json())
    (data / f"{name}.identity.json").write_text("{}")
    _age(manifest, thing.days * DAY)
    if thing.pinned:
        Pins(data).add(name)


def _job(redis_url: str) -> str:
    async def submit() -> str:
        ledger = Ledger.connect(redis_url)
        try:
            spec = JobSpec(source=RepoSource(repo="org/drafter"), format=Format.FP8)
            return (await ledger.submit(spec, owner="test"))[0].id
        finally:
            await ledger.close()

    return asyncio.run(submit())


def _running(data: Path, job: Running, worker: WorkerLedger, redis_url: str) -> None:
    job_id = _job(redis_url)
    claim = worker.claim(job_id, "test", LEASE)
    assert claim is not None
    _write(data / "jobs" / job_id / "1" / "scratch" / "variant" / "half", 5)
    if not job.told:
        return
    folder, target = (str(data / _commit_of(job.source + more)) for more in (0, 1))
    pulled = {"folder": folder, "target": {"folder": target}}
    result = data / "jobs" / job_id / "1" / "pull" / "result.json"
    _write(result, 0)
    result.write_text(json.dumps({"value": pulled, "problem": None, "seconds": 1.0}))
    resolved = ResolvedSpec(
        source=ResolvedSource(repo="org/drafter", commit="0" * 40, manifest_sha256="cd" * 32),
        format=Format.FP8,
        quantize=QuantizeOptions(),
        family="eagle3",
        quantizer="test",
        variant=variant_name(job.variant).removeprefix("variants/"),
    )
    worker.resolve(claim, resolved, "eagle3")
    worker.stage(claim, StageRecord(name=Stage.QUANTIZE, state=StageState.RUNNING))


def needed(store: Store) -> set[str]:
    """Names that running attempts have said they need."""
    told = [job for job in store.running if job.told]
    names = {variant_name(job.variant) for job in told}
    return names | {_commit_of(job.source + more) for job in told for more in (0, 1)}


def tree(data: Path) -> dict[str, bytes | None]:
    """Everything below, folders as None."""
    return {
        path.relative_to(data).as_posix(): path.read_bytes() if path.is_file() else None for path in data.rglob("*")
    }
