"""The worker's stores and the service's gc agree: on places, locks, marks and tombstones."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from draftmill.archive.layout import MANIFEST, RECEIPT, RECEIPTS, folder_name
from draftmill.archive.manifest import make
from draftmill.formats import Format
from draftmill.jobs import Job, JobSpec, QuantizeOptions, RepoSource, ResolvedSource, ResolvedSpec
from draftmill.problems import ProblemError
from draftmill.reports import Manifest, ManifestFile
from draftmill.states import JobState
from draftmill_service.retention.layout import Item, inventory
from draftmill_service.retention.policy import Removal
from draftmill_service.retention.removing import Remover
from draftmill_service.retention.tombstones import read_tombstone, receipts_by_name
from draftmill_service.store import Store
from draftmill_worker.pull.store import Slot, rehash
from draftmill_worker.variants import VariantStore
from tests.unit.receipts.good import good
from tests.unit.test_variants import DIGEST, _report, _scratch

COMMIT = "a" * 40
STALE = '{"name": "x"}'


def _age(path: Path) -> int:
    os.utime(path, (1, 1))
    return path.stat().st_mtime_ns


def _item(data: Path, name: str) -> Item:
    (found,) = [item for item in inventory(data) if item.name == name]
    return found


def _remove(data: Path, item: Item) -> str | None:
    remover = Remover(data, {item.name: ["b" + "0" * 32]}, datetime.now(UTC))
    kept = remover.remove(Removal(item, "unused for 9 days"))
    remover.empty_trash()
    return kept


def done() -> Job:
    resolved = ResolvedSpec(
        source=ResolvedSource(repo="org/drafter", commit=COMMIT, manifest_sha256="cd" * 32),
        format=Format.FP8,
        quantize=QuantizeOptions(),
        family="eagle3",
        quantizer="test",
        variant=DIGEST,
    )
    return Job(
        id="j" + "0" * 26,
        state=JobState.SUCCEEDED,
        spec=JobSpec(source=RepoSource(repo="org/drafter"), format=Format.FP8),
        resolved_spec=resolved,
        timestamps={JobState.SUCCEEDED: datetime.now(UTC)},
    )


@pytest.fixture
def store(tmp_path: Path) -> VariantStore:
    store = VariantStore(tmp_path, DIGEST)
    store.seal(_scratch(tmp_path))
    store.write_report("j1", _report())
    return store


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    slot = Slot(tmp_path / "sources" / "org" / "drafter", COMMIT)
    _fill(slot)
    return slot


def _fill(slot: Slot) -> None:
    slot.partial.mkdir(parents=True)
    (slot.partial / "config.json").write_text("{}")
    unknown = Manifest(files=(ManifestFile(path="config.json", size=2, sha256="0" * 64),))
    manifest = rehash(slot.partial, unknown, None)
    assert manifest is not None
    slot.seal(manifest)


def test_a_removed_variant_is_built_again_with_the_same_bytes(store: VariantStore, tmp_path: Path) -> None:
    before = store.manifest()
    assert _remove(tmp_path, _item(tmp_path, f"variants/{DIGEST}")) is None
    assert not store.folder.exists()
    assert store.find() is None
    with pytest.raises(ProblemError, match=r"expired: .* was removed by retention on .*: unused for 9 days") as refused:
        Store(tmp_path).artifacts(done())
    assert refused.value.problem.status == 410
    stone = read_tombstone(store.evidence / "tombstone.json")
    assert stone is not None
    assert stone.receipts == ("b" + "0" * 32,)
    with pytest.raises(ProblemError, match="variant-differs"):
        store.seal(_scratch(tmp_path, weights=b"others!", job="j2"))
    assert not store.folder.exists()
    assert not store.seal(_scratch(tmp_path, job="j3")).adopted
    assert store.manifest() == before
    assert not (store.evidence / "tombstone.json").exists()
    assert store.find() is not None


def test_a_variant_that_is_found_or_adopted_is_marked_as_used(store: VariantStore, tmp_path: Path) -> None:
    mark = store.evidence / "manifest.json"
    uses = (store.find, lambda: store.seal(_scratch(tmp_path, job="j2")))
    for use in uses:
        decided = _item(tmp_path, f"variants/{DIGEST}")
        aged = _age(mark)
        # Of a run that was cut short before it moved the folder.
        (store.evidence / "tombstone.json").write_text(STALE)
        use()
        assert mark.stat().st_mtime_ns > aged
        assert not (store.evidence / "tombstone.json").exists()
        assert _remove(tmp_path, decided) == "it was used meanwhile"
    assert store.find() is not None


def test_a_variant_being_sealed_is_let_be(store: VariantStore, tmp_path: Path) -> None:
    item = _item(tmp_path, f"variants/{DIGEST}")
    with store._locked():
        assert _remove(tmp_path, item) == "somebody holds its lock"
    assert _remove(tmp_path, item) is None


def test_a_removed_source_is_pulled_again(slot: Slot, tmp_path: Path) -> None:
    name = f"sources/org/drafter/{COMMIT}"
    assert _remove(tmp_path, _item(tmp_path, name)) is None
    assert sorted(path.name for path in slot.parent.iterdir()) == [f"{COMMIT}.tombstone.json"]
    assert slot.sealed() is None
    _fill(slot)
    assert slot.sealed() is not None
    assert not slot.tombstone_path.exists()
    assert _item(tmp_path, name).bytes == 2


def test_a_source_in_use_is_marked_and_let_be(slot: Slot, tmp_path: Path) -> None:
    item = _item(tmp_path, f"sources/org/drafter/{COMMIT}")
    with slot.locked():
        assert _remove(tmp_path, item) == "somebody holds its lock"
        aged = _age(slot.manifest_path)
        assert slot.sealed() is not None
    assert slot.manifest_path.stat().st_mtime_ns > aged
    assert _remove(tmp_path, item) == "it was used meanwhile"
    assert slot.folder.is_dir()


def test_what_a_killed_run_left_beside_a_source_goes(slot: Slot, tmp_path: Path) -> None:
    slot.tombstone_path.write_text(STALE)
    Remover(tmp_path, {}, datetime.now(UTC)).finish()
    assert slot.manifest_path.exists(), "its folder is there"
    slot.folder.rename(tmp_path / "elsewhere")
    Remover(tmp_path, {}, datetime.now(UTC)).finish()
    assert [path.name for path in slot.parent.iterdir()] == [slot.tombstone_path.name]


def test_receipts_name_what_their_engines_read(tmp_path: Path) -> None:
    receipt = good(tmp_path / "drafter").receipt
    boot = tmp_path / RECEIPTS / folder_name(datetime.now(UTC), receipt.boot)
    boot.mkdir(parents=True)
    (boot / RECEIPT).write_text(receipt.model_dump_json(by_alias=True))
    (boot / MANIFEST).write_bytes(make(boot, receipt.boot).bytes())
    assert receipt.drafter is not None
    assert receipts_by_name(tmp_path) == {
        f"jobs/{receipt.job}": [receipt.boot],
        f"variants/{receipt.drafter.variant}": [receipt.boot],
        f"sources/org--drafter/{receipt.drafter.commit}": [receipt.boot],
        f"sources/org--target/{receipt.target.commit}": [receipt.boot],
    }
    (boot / RECEIPT).write_text("{}")
    assert receipts_by_name(tmp_path) == {}
